// Classify a digit from Rust. The declarations are those of digits.h; structs that are not used stay opaque.
//   tilewright aot examples/digits/digits.onnx -o out --threads 1 --static
//   rustc -L out examples/aot/digits.rs && ./digits
use std::ffi::{c_char, c_void, CStr};
use std::ptr::{null, null_mut};

#[repr(C)]
struct Model {
    _private: [u8; 0],
}

#[link(name = "digits", kind = "static")]
extern "C" {
    fn digits_workspace(dims: *const i64, bytes: *mut i64) -> i32;
    fn digits_create(model: *mut *mut Model, memory: *mut c_void, bytes: i64, weights: *const c_void, threads: i32) -> i32;
    fn digits_run(model: *mut Model, dims: *const i64, inputs: *const *const c_void, outputs: *const *mut c_void) -> i32;
    fn digits_destroy(model: *mut Model);
    fn digits_status_text(status: i32) -> *const c_char;
}

fn check(status: i32) -> Result<(), String> {
    match status {
        0 => Ok(()),
        _ => Err(unsafe { CStr::from_ptr(digits_status_text(status)) }.to_string_lossy().into_owned()),
    }
}

struct Digits {
    model: *mut Model,
    dims: [i64; 1],
}

impl Digits {
    fn new(batch: i64) -> Result<Self, String> {
        let (mut made, mut bytes) = (Digits { model: null_mut(), dims: [batch] }, 0);
        check(unsafe { digits_workspace(made.dims.as_ptr(), &mut bytes) })?;
        check(unsafe { digits_create(&mut made.model, null_mut(), bytes, null(), 0) })?;
        Ok(made)
    }

    fn run(&mut self, images: &[f32]) -> Result<Vec<f32>, String> {
        assert_eq!(images.len() as i64, self.dims[0] * 64);
        let mut scores = vec![0.0f32; self.dims[0] as usize * 10];
        let (inputs, outputs) = ([images.as_ptr().cast()], [scores.as_mut_ptr().cast()]);
        check(unsafe { digits_run(self.model, self.dims.as_ptr(), inputs.as_ptr(), outputs.as_ptr()) })?;
        Ok(scores)
    }
}

impl Drop for Digits {
    fn drop(&mut self) {
        unsafe { digits_destroy(self.model) }
    }
}

fn main() -> Result<(), String> {
    let drawn = ["  ####  ", " ##  ## ", "     ## ", "   ###  ", "     ## ", "      ##", " ##  ## ", "  ####  "];
    let image: Vec<f32> = drawn.concat().chars().map(|c| if c == '#' { 16.0 } else { 0.0 }).collect();
    let scores = Digits::new(1)?.run(&image)?;
    let best = (0..10).max_by(|&a, &b| scores[a].total_cmp(&scores[b])).unwrap();
    println!("{best}");
    println!("{}", Digits::new(-1).err().unwrap());
    Ok(())
}
