// Classify a digit from Go, by cgo. What the model reads and writes is C's memory: Go may move its own.
//
//	tilewright aot examples/digits/digits.onnx -o out --threads 1 --static
//	CGO_CFLAGS="-I$PWD/out" CGO_LDFLAGS="-L$PWD/out -ldigits" go run examples/aot/digits.go
package main

// #include <stdlib.h>
// #include "digits.h"
import "C"

import (
	"errors"
	"fmt"
	"os"
	"unsafe"
)

func check(status C.tw_status) error {
	if status == 0 {
		return nil
	}
	return errors.New(C.GoString(C.digits_status_text(status)))
}

// Digits is a handle with its tensors: one call at a time; make one for each goroutine that classifies.
type Digits struct {
	model           *C.digits_model
	dims            [1]C.int64_t
	image, scores   []float32
	inputs, outputs *unsafe.Pointer
}

func tensor(n int64) (unsafe.Pointer, []float32) {
	data := C.calloc(C.size_t(n), 4)
	return data, unsafe.Slice((*float32)(data), n)
}

func table(pointer unsafe.Pointer) *unsafe.Pointer {
	found := (*unsafe.Pointer)(C.malloc(C.size_t(unsafe.Sizeof(pointer))))
	*found = pointer
	return found
}

func newDigits(batch int64) (*Digits, error) {
	made, bytes := &Digits{dims: [1]C.int64_t{C.int64_t(batch)}}, C.int64_t(0)
	if err := check(C.digits_workspace(&made.dims[0], &bytes)); err != nil {
		return nil, err
	}
	if err := check(C.digits_create(&made.model, nil, bytes, nil, 0)); err != nil {
		return nil, err
	}
	image, pixels := tensor(batch * 64)
	scores, numbers := tensor(batch * 10)
	made.image, made.scores, made.inputs, made.outputs = pixels, numbers, table(image), table(scores)
	return made, nil
}

func (d *Digits) classify() (int, error) {
	if err := check(C.digits_run(d.model, &d.dims[0], d.inputs, d.outputs)); err != nil {
		return 0, err
	}
	best := 0
	for k, score := range d.scores {
		if score > d.scores[best] {
			best = k
		}
	}
	return best, nil
}

func (d *Digits) close() {
	C.digits_destroy(d.model)
	for _, t := range []*unsafe.Pointer{d.inputs, d.outputs} {
		C.free(*t)
		C.free(unsafe.Pointer(t))
	}
}

func main() {
	digits, err := newDigits(1)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	defer digits.close()
	three := []string{"..###...", ".#...#..", ".....#..", "...##...", ".....#..", ".....#..", ".#...#..", "..###..."}
	for y, row := range three {
		for x, c := range row {
			if c == '#' {
				digits.image[8*y+x] = 16
			}
		}
	}
	digit, err := digits.classify()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(digit)
	if _, err := newDigits(-1); err != nil {
		fmt.Println(err)
	}
}
