//! Two engines in one process: one offers memory, the other writes into it and reads it back.
//!
//! `cargo run --release --example tcp_roundtrip`

use std::time::Duration;

use orbite::{
    EngineConfig, Permission, Result, TransferEngine, TransferOp, TransferRequest, Transport,
};

const LENGTH: u64 = 1 << 20;

/// Fails with the first error of the engine.
pub fn main() -> Result<()> {
    // The source: whoever has its descriptor may write to and read from this range.
    let source = TransferEngine::new(EngineConfig::default())?;
    let offered = source.register_memory(vec![0; LENGTH as usize], Permission::RemoteReadWrite)?;
    println!("source {} listens on {}", source.engine_id(), source.endpoint());

    // The requester: the descriptor would come over a channel that both trust.
    let requester = TransferEngine::new(EngineConfig::default())?;
    let message: Vec<u8> = (0..LENGTH).map(|at| (at * 31 % 251) as u8).collect();
    let outgoing = requester.register_memory(message.clone(), Permission::Local)?;
    let incoming = requester.register_memory(vec![0; LENGTH as usize], Permission::Local)?;

    let peer = requester.open_segment(source.descriptor(), None, Duration::from_secs(3))?;
    for region in peer.regions() {
        println!(
            "peer offers {} bytes at {:#x}: {}",
            region.length, region.address, region.permission
        );
    }

    for (op, memory) in [(TransferOp::Write, &outgoing), (TransferOp::Read, &incoming)] {
        let request =
            TransferRequest::new(Transport::Unspec, memory.address(), offered.address(), LENGTH);
        let report =
            requester.submit_and_wait(op, &(&peer).into(), &[request], Duration::from_secs(10))?;
        if let Some(failure) = report.failure {
            return Err(failure.error);
        }
        println!("{op:?}: {} bytes in {} us", report.completed_bytes, report.timing.transport_us);
    }

    let mut echoed = vec![0; LENGTH as usize];
    incoming.read_at(0, &mut echoed)?;
    assert_eq!(echoed, message, "the bytes came back as they were sent");
    println!("all bytes equal");

    drop(peer);
    requester.close(Duration::from_secs(5))?;
    source.close(Duration::from_secs(5))
}
