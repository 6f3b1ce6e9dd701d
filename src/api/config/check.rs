//! What a configuration as a whole must fulfil: each number in its range, and the rules between
//! fields. Pure; nothing is opened, resolved or started. What only the machine knows (whether a core
//! may be used, whether an address is ours) is checked by the parts that use it.

use crate::error::{Error, Result};
use crate::types::Endpoint;

use super::fields::{MAX_BLOCKS, MAX_CPU, MAX_SHARDS};
use super::file::quoted;
use super::hint::shown;
use super::keys::{ROOT, TRANSPORTS, join};
use super::kinds::{Key, Kind};
use super::value::power_of_two;
use super::{EngineConfig, SecurityMode};

/// A rule that is broken.
pub(super) struct Violation {
    /// Dotted path of the key at fault.
    pub path: String,
    /// What is wrong and what would be right.
    pub reason: String,
}

/// Which keys a configuration has: read already, or named by a document whose files come last.
#[derive(Clone, Copy)]
pub(super) struct Keys {
    pub present: bool,
    pub previous: bool,
}

impl EngineConfig {
    /// Checks a configuration that was built or changed in code. `InvalidConfig` names the field.
    pub(crate) fn check(&self) -> Result<()> {
        let keys = Keys {
            present: self.security.psk.is_some(),
            previous: self.security.previous_psk.is_some(),
        };
        run(self, keys)
            .map_err(|Violation { path, reason }| Error::InvalidConfig(format!("{path}: {reason}")))
    }
}

/// All checks; the first broken rule is told.
pub(super) fn run(config: &EngineConfig, keys: Keys) -> core::result::Result<(), Violation> {
    ranges(config, ROOT, "")?;
    ranges(config, TRANSPORTS, "")?;
    require(config.tcp, "tcp", || "no transport is on; set tcp to true".into())?;
    addresses(config)?;
    sizes(config)?;
    cores(config)?;
    proofs(config, keys)?;
    let root = &config.topology.sysfs_root;
    require(root.is_absolute(), "topology.sysfs_root", || {
        format!("must be an absolute path; found {}", quoted(root))
    })
}

fn require(
    holds: bool,
    path: &str,
    reason: impl FnOnce() -> String,
) -> core::result::Result<(), Violation> {
    if holds { Ok(()) } else { Err(Violation { path: path.into(), reason: reason() }) }
}

/// Each number lies in the range of its key.
fn ranges(
    config: &EngineConfig,
    keys: &'static [Key],
    above: &str,
) -> core::result::Result<(), Violation> {
    for key in keys {
        match &key.kind {
            Kind::Count(count) => {
                let value = (count.get)(config);
                let (low, high) = (count.range.start(), count.range.end());
                require(count.range.contains(&value), &join(above, key.name), || {
                    format!("must be {low}..={high}; found {value}")
                })?;
                power_of_two(count, value)
                    .map_err(|reason| Violation { path: join(above, key.name), reason })?;
            }
            Kind::Object(inner) => ranges(config, inner, &join(above, key.name))?,
            _ => {}
        }
    }
    Ok(())
}

fn addresses(config: &EngineConfig) -> core::result::Result<(), Violation> {
    let text = &config.bind_addr;
    let bind = Endpoint::parse(text).map_err(|error| Violation {
        path: "bind_addr".into(),
        reason: format!("\"{}\": {error}", shown(text)),
    })?;
    let wildcard = bind.ip().to_canonical().is_unspecified();
    require(!wildcard || config.advertise_addr.is_some(), "advertise_addr", || {
        format!(
            "bind_addr {bind} takes connections on every address, so peers have to be told one; \
             set advertise_addr to an address of this machine that they reach"
        )
    })?;
    if let Some(ip) = config.advertise_addr.map(|ip| ip.to_canonical()) {
        require(!ip.is_unspecified() && !ip.is_multicast(), "advertise_addr", || {
            format!("peers cannot connect to {ip}; write an address of this machine")
        })?;
    }
    let (port, span) = (bind.addr().port(), config.bind_port_span);
    require(port.checked_add(span).is_some(), "bind_port_span", || {
        format!("port {port} and {span} following ones pass 65535; at most {}", u16::MAX - port)
    })
}

fn sizes(config: &EngineConfig) -> core::result::Result<(), Violation> {
    let tcp = &config.tcp_options;
    let slice = tcp.slice_bytes;
    require(tcp.small_bytes <= slice, "tcp_options.small_bytes", || {
        format!("must not exceed slice_bytes ({slice}); found {}", tcp.small_bytes)
    })?;
    require(tcp.max_message_bytes >= slice, "tcp_options.max_message_bytes", || {
        format!("must not be less than slice_bytes ({slice}); found {}", tcp.max_message_bytes)
    })
}

fn cores(config: &EngineConfig) -> core::result::Result<(), Violation> {
    let cores = &config.shards.cores;
    let (count, named) = (usize::from(config.shards.count), cores.len());
    require(named <= MAX_SHARDS, "shards.cores", || {
        format!("names {named} CPUs; at most {MAX_SHARDS}")
    })?;
    for (index, core) in cores.iter().enumerate() {
        require(u64::from(*core) <= MAX_CPU, "shards.cores", || {
            format!("must be CPU numbers in 0..={MAX_CPU}; found {core}")
        })?;
        require(!cores.iter().take(index).any(|other| other == core), "shards.cores", || {
            format!("CPU {core} is named twice; each shard has a core of its own")
        })?;
    }
    require(named == 0 || count == 0 || named == count, "shards.cores", || {
        format!(
            "names {named} CPUs for {count} shards; make them equal, or leave shards.count at 0"
        )
    })
}

fn proofs(config: &EngineConfig, keys: Keys) -> core::result::Result<(), Violation> {
    let wants = config.security.mode == SecurityMode::Psk;
    require(!wants || keys.present, "security.psk_file", || {
        "security.mode \"psk\" needs a key; name its file in security.psk_file".into()
    })?;
    require(wants || !keys.present, "security.psk_file", || {
        "a key is given, but security.mode \"epoch\" does not use it; set security.mode to \"psk\""
            .into()
    })?;
    require(keys.present || !keys.previous, "security.previous_psk_file", || {
        "there is a previous key but no present one; name it in security.psk_file".into()
    })?;
    let blocks = config.security.allow_peers.len();
    require(blocks <= MAX_BLOCKS, "security.allow_peers", || {
        format!("has {blocks} blocks; at most {MAX_BLOCKS}")
    })
}
