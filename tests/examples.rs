//! The examples do what they say.

#[path = "../examples/external_allocation.rs"]
mod external_allocation;
#[path = "../examples/tcp_roundtrip.rs"]
mod tcp_roundtrip;

#[test]
fn tcp_roundtrip_runs() {
    tcp_roundtrip::main().unwrap();
}

#[test]
fn external_allocation_runs() {
    external_allocation::main().unwrap();
}
