//! Registers memory that the program allocated itself, with an owner that is dropped exactly once,
//! after the engine let go of it.
//!
//! `cargo run --release --example external_allocation`
#![expect(unsafe_code, reason = "it shows how memory of another owner is handed over")]

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::sync::Arc;
use std::time::Duration;

use orbite::{
    EngineConfig, HostMemory, Permission, Result, TransferEngine, TransferOp, TransferRequest,
    Transport,
};

const LENGTH: usize = 256 << 10;

/// A page-aligned block from the program's own allocator.
struct Block {
    start: *mut u8,
    layout: Layout,
}

// SAFETY: the block is plain memory without ties to a thread; only its owner frees it.
unsafe impl Send for Block {}
// SAFETY: a shared `Block` gives out nothing but its address.
unsafe impl Sync for Block {}

impl Block {
    fn new() -> Self {
        let Ok(layout) = Layout::from_size_align(LENGTH, 4096) else {
            unreachable!("a valid layout")
        };
        // SAFETY: the layout has a size above 0.
        let start = unsafe { alloc_zeroed(layout) };
        if start.is_null() {
            handle_alloc_error(layout);
        }
        Self { start, layout }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        println!("the allocation is given back");
        // SAFETY: allocated with this layout in `new`, and dropped once.
        unsafe { dealloc(self.start, self.layout) };
    }
}

/// Fails with the first error of the engine.
pub fn main() -> Result<()> {
    let block = Arc::new(Block::new());
    let start = block.start;
    // SAFETY: the bytes stay valid for as long as `block` lives, of which the engine keeps a share;
    // this program touches them only through the registration from here on.
    let memory = unsafe { HostMemory::from_external(start, LENGTH as u64, block) }?;

    let engine = TransferEngine::new(EngineConfig::default())?;
    let length = memory.len();
    let registered =
        engine.register_host_memory(&memory, 0, length, Permission::RemoteReadWrite)?;
    drop(memory);

    // An engine may be its own peer.
    let payload = engine.register_memory(vec![7; LENGTH], Permission::Local)?;
    let peer =
        engine.open_segment(engine.endpoint(), engine.source_epoch(), Duration::from_secs(3))?;
    let request =
        TransferRequest::new(Transport::Tcp, payload.address(), registered.address(), length);
    let report = engine.submit_and_wait(
        TransferOp::Write,
        &(&peer).into(),
        &[request],
        Duration::from_secs(10),
    )?;
    println!("wrote {} bytes into the program's own allocation", report.completed_bytes);

    let mut first = [0];
    registered.read_at(0, &mut first)?;
    assert_eq!(first, [7]);

    println!("unregistering");
    engine.unregister_memory(registered)?;
    drop(peer);
    engine.close(Duration::from_secs(5))
}
