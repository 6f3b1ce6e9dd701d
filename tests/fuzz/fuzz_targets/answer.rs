//! The answer to operations.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    orbite::testing::wire::answer(bytes);
});
