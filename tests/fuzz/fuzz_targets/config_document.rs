//! The configuration document.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Err(broken) = orbite::testing::config::document(bytes) {
        panic!("{broken}");
    }
});
