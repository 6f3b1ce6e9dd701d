//! The one-string descriptor of an engine.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Err(broken) = orbite::testing::config::descriptor(bytes) {
        panic!("{broken}");
    }
});
