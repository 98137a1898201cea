// Classify digits of any number at once in C++17: sizes are bound from shapes, memory and weights are the model's.
//   tilewright aot examples/digits/digits.onnx -o out
//   c++ -std=c++17 -Iout examples/aot/digits.cpp out/digits.o -o digits -lm -lpthread && ./digits
#include "digits.h"
#include <cstdio>
#include <memory>
#include <stdexcept>
#include <vector>

static void check(tw_status status) {
  if (status != TW_OK) throw std::runtime_error(digits_status_text(status));
}

class Digits {
public:
  explicit Digits(int64_t batch) : batch_(batch) {
    const int64_t shape[] = {batch, 1, 8, 8};
    const int64_t *shapes[] = {shape};
    int64_t bytes = 0;
    check(digits_bind(shapes, dims_));
    check(digits_workspace(dims_, &bytes));
    digits_model *made = nullptr;
    check(digits_create(&made, nullptr, bytes, nullptr, 0));
    model_.reset(made);
  }

  std::vector<float> operator()(const std::vector<float> &images) {
    std::vector<float> scores(static_cast<size_t>(batch_) * 10);
    const void *inputs[] = {images.data()};
    void *outputs[] = {scores.data()};
    check(digits_run(model_.get(), dims_, inputs, outputs));
    return scores;
  }

private:
  struct Destroy {
    void operator()(digits_model *model) const { digits_destroy(model); }
  };
  int64_t batch_;
  int64_t dims_[DIGITS_N_SYMBOLS] = {};
  std::unique_ptr<digits_model, Destroy> model_;
};

int main() try {
  Digits digits(3);
  std::vector<float> images(3 * 64, 0.0f);
  for (int row = 0; row < 8; row++) images[64 + row * 8 + 4] = 16.0f; // the second one: a stroke
  const std::vector<float> scores = digits(images);
  for (int k = 0; k < 30; k += 10) {
    int best = 0;
    for (int d = 1; d < 10; d++) best = scores[k + d] > scores[k + best] ? d : best;
    std::printf("%d ", best);
  }
  std::printf("\n");
  try {
    Digits none(-1);
  } catch (const std::runtime_error &error) {
    std::printf("%s\n", error.what());
  }
} catch (const std::exception &error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
