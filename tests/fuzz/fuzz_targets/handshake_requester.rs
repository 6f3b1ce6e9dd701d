//! A handshake as its requester sees it.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    orbite::testing::wire::handshake_requester(bytes);
});
