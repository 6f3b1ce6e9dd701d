//! Values with a form of their own: addresses, paths, lists of CPUs and of address blocks.

use std::net::IpAddr;
use std::path::PathBuf;

use crate::types::Endpoint;

use super::hint::shown;
use super::kinds::Draft;
use super::value::Found;
use super::{IpBlock, PresharedKey};

/// What a dump writes in the place of a secret that no file holds. No document may contain it.
pub(super) const REDACTED: &str = "<redacted>";

/// Longest path that the kernel takes (`PATH_MAX`, `linux/limits.h`).
const PATH_BYTES: usize = 4096;
/// Highest CPU number of any kernel configuration (`NR_CPUS` of x86-64 is at most 8192).
pub(super) const MAX_CPU: u64 = 8191;
/// Most shards, and so most cores.
pub(super) const MAX_SHARDS: usize = 256;
/// Most blocks of the allow list: it is walked at each accept.
pub(super) const MAX_BLOCKS: usize = 1024;

pub(super) fn set_bind_addr(draft: &mut Draft, text: Option<&str>) -> Result<(), String> {
    let text = text.unwrap_or_default();
    Endpoint::parse(text).map_err(|error| format!("\"{}\": {error}", shown(text)))?;
    draft.config.bind_addr = text.into();
    Ok(())
}

pub(super) fn set_advertise_addr(draft: &mut Draft, text: Option<&str>) -> Result<(), String> {
    draft.config.advertise_addr = text
        .map(|text| {
            text.parse::<IpAddr>().map_err(|_| {
                format!(
                    "\"{}\" is no numeric address; write one without port, such as 10.0.0.7 or fd00::7",
                    shown(text)
                )
            })
        })
        .transpose()?;
    Ok(())
}

pub(super) fn set_sysfs_root(draft: &mut Draft, text: Option<&str>) -> Result<(), String> {
    let text = path_text(text.unwrap_or_default())?;
    draft.config.topology.sysfs_root = PathBuf::from(text);
    Ok(())
}

pub(super) fn key_file(text: &str) -> Result<String, String> {
    if text == REDACTED {
        return Err(format!(
            "\"{REDACTED}\" stands for a key that was left out of a dump; name the key's file"
        ));
    }
    path_text(text).map(Into::into)
}

pub(super) fn key_path(key: &PresharedKey) -> String {
    key.path().and_then(|path| path.to_str()).unwrap_or(REDACTED).into()
}

fn path_text(text: &str) -> Result<&str, String> {
    match text.len() {
        0 => Err("the path is empty".into()),
        length if length >= PATH_BYTES => {
            Err(format!("the path has {length} bytes; the kernel takes fewer than {PATH_BYTES}"))
        }
        _ if text.contains('\0') => Err("the path contains a NUL character".into()),
        _ => Ok(text),
    }
}

pub(super) fn push_core(draft: &mut Draft, found: &Found<'_>) -> Result<(), String> {
    match found {
        Found::Integer(number) => {
            let core = u64::try_from(*number)
                .ok()
                .filter(|core| *core <= MAX_CPU)
                .ok_or_else(|| format!("must be a CPU number in 0..={MAX_CPU}; found {number}"))?;
            add_core(draft, core as u32)
        }
        _ => Err(format!("must be a CPU number in 0..={MAX_CPU}; found {found}")),
    }
}

fn add_core(draft: &mut Draft, core: u32) -> Result<(), String> {
    let cores = &mut draft.config.shards.cores;
    if cores.contains(&core) {
        return Err(format!("CPU {core} is named twice; each shard has a core of its own"));
    }
    if cores.len() == MAX_SHARDS {
        return Err(format!("more than {MAX_SHARDS} CPUs"));
    }
    cores.push(core);
    Ok(())
}

/// `"0-3,8"`: numbers and inclusive ranges, as the kernel writes CPU lists.
pub(super) fn set_cores(draft: &mut Draft, text: &str) -> Result<(), String> {
    let form = || {
        format!(
            "\"{}\" is no CPU list; write numbers in 0..={MAX_CPU} and rising ranges, such as \"0-3,8\"",
            shown(text)
        )
    };
    let number = |digits: &str| {
        let digits_only = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
        digits.parse().ok().filter(|core: &u32| digits_only && u64::from(*core) <= MAX_CPU)
    };
    draft.config.shards.cores.clear();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = number(first).zip(number(last)).ok_or_else(form)?;
        if first > last {
            return Err(form());
        }
        (first..=last).try_for_each(|core| add_core(draft, core))?;
    }
    Ok(())
}

pub(super) fn push_block(draft: &mut Draft, found: &Found<'_>) -> Result<(), String> {
    match found {
        Found::Text(text) => {
            draft.config.security.allow_peers.push(IpBlock::parse(text)?);
            Ok(())
        }
        _ => Err(format!(
            "must be a block of addresses in quotes, such as \"10.0.0.0/8\"; found {found}"
        )),
    }
}
