//! The head of a frame: fixed header and meta.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    orbite::testing::wire::header(bytes);
});
