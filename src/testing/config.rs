//! Fuzz bodies of the two texts that a program hands to an engine, the configuration document and the
//! descriptor, and the source of their inputs.

pub use crate::api::config::KeyFacts;
use crate::api::config::{facts, from_bytes};
use crate::api::descriptor::{Descriptor, parse};
use crate::error::{Error, Result};
use crate::{EngineConfig, SourceEpoch};

/// Reads any bytes as a document. `Ok(true)` if it was taken and its dump gave an equal configuration
/// again, `Ok(false)` if it was refused as it should be, `Err` with the promise that was broken.
pub fn document(bytes: &[u8]) -> core::result::Result<bool, String> {
    let config = match from_bytes(bytes) {
        Ok(config) => config,
        Err(Error::Config { path, reason }) if path.is_empty() || reason.is_empty() => {
            return Err(format!("an error without path or reason: {path:?} {reason:?}"));
        }
        Err(Error::Config { path, reason }) if path.len() + reason.len() > 8192 => {
            return Err(format!("an error of {} bytes", path.len() + reason.len()));
        }
        Err(Error::Config { .. }) => return Ok(false),
        Err(other) => return Err(format!("refused with {}: {other}", other.code())),
    };
    config.check().map_err(|error| format!("a loaded configuration does not pass: {error}"))?;
    let dump = config.to_json();
    match EngineConfig::from_json(&dump) {
        Ok(again) if again == config => Ok(true),
        Ok(_) => Err(format!("the dump loads as another configuration: {dump}")),
        Err(error) => Err(format!("the dump does not load: {error}: {dump}")),
    }
}

/// Reads any bytes as a descriptor. `Ok(true)` if they are one and writing it again gives the same
/// text, `Ok(false)` if they were refused as they should be, `Err` with the promise that was broken.
pub fn descriptor(bytes: &[u8]) -> core::result::Result<bool, String> {
    let Ok(text) = core::str::from_utf8(bytes) else { return Ok(false) };
    match parse(text) {
        Ok(parts) => {
            let again = Descriptor::new(&parts.endpoint, &parts.epoch, parts.build);
            let same = again.as_str() == text.trim_ascii();
            if same { Ok(true) } else { Err("a descriptor that is not the one it says".into()) }
        }
        Err(Error::InvalidRequest(reason)) if reason.len() < 400 => Ok(false),
        Err(other) => Err(format!("refused with {}: {other}", other.code())),
    }
}

/// A descriptor for tests.
pub fn descriptor_of(endpoint: &str, epoch: &SourceEpoch) -> Descriptor {
    Descriptor::new(endpoint, epoch, *b"for test")
}

/// The check that an engine makes of a configuration built in code.
pub fn check(config: &EngineConfig) -> Result<()> {
    config.check()
}

/// What the table of keys says of each key.
pub fn keys() -> Vec<KeyFacts> {
    facts()
}

/// Documents that load, between them with every key of this version.
pub const DOCUMENTS: &[&str] = &[
    "{}",
    r#"{"bind_addr": "127.0.0.1:0", "handler_timeout_us": 5000000,
        "transports": {"tcp": true, "shm": {"enable": false}},
        "selector": {"policy": []}}"#,
    r#"{"bind_addr": "[::]:7000", "bind_port_span": 16, "advertise_addr": "fd00::7",
        "connect_timeout_ms": 1, "close_timeout_us": 0, "quiesce_timeout_ms": 600000,
        "max_peer_segments": 4096, "max_registrations": 1, "merge_requests": false,
        "max_merge_bytes": 4096, "auto_refresh": false, "idle_poll_interval_us": 100,
        "max_batches": 4096, "files": {"root": null, "follow_symlinks": false}}"#,
    r#"{"tcp": true, "tcp_options": {"max_lanes": 8, "lane_window": 1, "max_scatter_ops": 4096,
        "slice_bytes": 262144, "small_bytes": 0, "max_message_bytes": 262144,
        "send_chunk_bytes": 4096, "stall_timeout_ms": 100, "keepalive_idle_s": 1,
        "keepalive_interval_s": 32767, "keepalive_count": 127, "payload_crc": true,
        "reconnect_cooldown_ms": 0, "lanes_per_peer": 1, "zero_copy_min_bytes": 0}}"#,
    r#"{"shards": {"count": 4, "cores": "0-2,8", "pin": "require", "numa": "off", "host": "thread",
        "spin_us": 0, "yield_us": 1000000, "submission_lane_depth": 64, "max_caller_lanes": 1,
        "turn_max_submissions": 1, "turn_max_events": 1, "turn_max_bytes": 65536}}"#,
    r#"{"shards": {"cores": [3, 1]}, "security": {"mode": "epoch", "discovery": "loopback",
        "psk_file": null, "allow_peers": ["10.0.0.0/8", "::1", "::ffff:192.168.0.0/112"]},
        "inbound": {"max_connections": 9, "max_connections_per_ip": 3, "max_handshakes": 2,
        "handshake_timeout_ms": 10, "max_inflight_bytes": 65536, "describe_page_regions": 1},
        "topology": {"sysfs_root": "/tmp/\u00e4 \"sys\"", "matrix": null, "nic_allow": []}}"#,
    r#"{"hp_tcp": null, "io_uring": false, "rdma": {"enable": false}, "qos": {}, "cma": null,
        "runtime_queue": null, "enable_progress_worker": true, "transports": {}}"#,
];

/// Pieces that a mutation puts in.
const PIECES: &[&str] = &[
    "{",
    "}",
    "[",
    "]",
    "\"",
    ",",
    ":",
    "\\",
    "\\u0000",
    "\\ud800",
    "\u{feff}",
    "/*",
    "//",
    "\0",
    "null",
    "true",
    "false",
    "NaN",
    "Infinity",
    "-",
    "-1",
    "0",
    "00",
    "-0",
    "1.0",
    "8.0",
    "1e3",
    "1E999",
    "255",
    "4097",
    "65536",
    "4294967296",
    "18446744073709551615",
    "18446744073709551616",
    "-9223372036854775809",
    "\"8\"",
    "\"\"",
    "[]",
    "{}",
    "[[[[[[[[",
    "{\"a\":{\"a\":",
    "\"tcp\":true,",
    "\"transports\":{",
    "\"enable\":true",
    "\"<redacted>\"",
    "\"mode\":\"psk\",",
    "\"psk_file\":\"/dev/null\",",
    "\"cores\":\"0-8191\",",
    "\"shards\":{\"count\":2},",
    "\"max_peer_segments\":",
    "\"hp_tcp\":{}",
    "\"bind_addr\":\"0.0.0.0:0\",",
    "\"unknown\":",
    "ä",
    "\u{7f}",
    " ",
    "\n",
];

/// Gives mutated documents, the same ones for the same seed.
#[derive(Debug)]
pub struct Mutator {
    state: u64,
    bytes: Vec<u8>,
}

impl Mutator {
    /// A source that starts at `seed`.
    pub fn new(seed: u64) -> Self {
        // The multiplier spreads small seeds; the generator must not start at zero.
        Self { state: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1, bytes: Vec::new() }
    }

    /// The next document: one of [`DOCUMENTS`] after 1, 2, 4 or 8 changes.
    pub fn next_document(&mut self) -> &[u8] {
        let base = self.choice(DOCUMENTS);
        self.bytes.clear();
        self.bytes.extend_from_slice(base.as_bytes());
        for _ in 0..1_u32 << self.below(4) {
            self.change();
        }
        &self.bytes
    }

    /// The next number of the generator (xorshift64*, Vigna 2016).
    pub fn next_number(&mut self) -> u64 {
        self.state ^= self.state >> 12;
        self.state ^= self.state << 25;
        self.state ^= self.state >> 27;
        self.state.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number in `0..limit`, or 0.
    pub fn below(&mut self, limit: usize) -> usize {
        let number = (self.next_number() >> 11) as usize;
        number.checked_rem(limit).unwrap_or(0)
    }

    fn choice(&mut self, from: &[&'static str]) -> &'static str {
        let index = self.below(from.len());
        from.get(index).copied().unwrap_or_default()
    }

    fn change(&mut self) {
        let at = self.below(self.bytes.len() + 1);
        let until = (at + 1 + self.below(24)).min(self.bytes.len());
        let other = self.below(self.bytes.len() + 1);
        match self.below(9) {
            0 => {
                let bit = self.below(8);
                if let Some(byte) = self.bytes.get_mut(at) {
                    *byte ^= 1 << bit;
                }
            }
            1 => {
                let value = self.below(256) as u8;
                self.bytes.insert(at, value);
            }
            2 if at < until => drop(self.bytes.drain(at..until)),
            3 if at < until => {
                let copy: Vec<u8> = self.bytes.get(at..until).unwrap_or_default().to_vec();
                drop(self.bytes.splice(other..other, copy));
            }
            4 if self.below(8) == 0 => self.bytes.truncate(at),
            5 | 6 => self.replace_number(at),
            7 if self.below(2) == 0 => self.bytes.insert(at, b' '),
            _ => {
                let piece = self.choice(PIECES);
                drop(self.bytes.splice(at..at, piece.bytes()));
            }
        }
    }

    /// Puts another number in the place of the first one after `at`: such documents often load.
    fn replace_number(&mut self, at: usize) {
        let digit = |byte: &u8| byte.is_ascii_digit();
        let tail = self.bytes.get(at..).unwrap_or_default();
        let Some(skipped) = tail.iter().position(digit) else { return };
        let start = at + skipped;
        let length = self.bytes.iter().skip(start).take_while(|byte| digit(byte)).count();
        let old = self.bytes.get(start..start + length).unwrap_or_default();
        let old = core::str::from_utf8(old).ok().and_then(|old| old.parse::<u64>().ok());
        let bits = self.below(64);
        let number = match (old, self.below(4)) {
            (Some(old), 0) => old.wrapping_sub(1),
            (Some(old), 1) => old.wrapping_add(1),
            (Some(old), 2) => old.wrapping_mul(2),
            _ => self.next_number() >> bits,
        };
        drop(self.bytes.splice(start..start + length, number.to_string().into_bytes()));
    }
}
