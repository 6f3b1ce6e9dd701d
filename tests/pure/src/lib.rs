//! The rooms that decide without I/O, compiled without `std`. `cargo check` of this crate is the test.
#![no_std]
#![deny(unsafe_code)]
#![expect(dead_code, unused_imports, reason = "their users are the other rooms")]

extern crate alloc;

#[path = "../../../src/protocol/mod.rs"]
mod protocol;
#[path = "../../../src/transfer/mod.rs"]
mod transfer;
#[path = "../../../src/types/mod.rs"]
mod types;
