//! The list of operations of a READ or a WRITE.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    orbite::testing::wire::ops(bytes);
});
