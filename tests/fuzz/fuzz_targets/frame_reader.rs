//! A stream of frames, whole and in pieces.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    orbite::testing::wire::reader(bytes);
});
