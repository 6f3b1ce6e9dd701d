//! A handshake as its source sees it.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    orbite::testing::wire::handshake_source(bytes);
});
