//! Pages, regions and notices of a control connection.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    orbite::testing::wire::page(bytes);
});
