//! Which CPU each thread of a benchmark runs on, and binding the calling thread.
//!
//! Three threads wait for each other: the caller, its shard, the target's shard. Where CPUs are
//! short, the caller belongs on the CPU of its own shard, never on the peer's.

use std::fs;

use rustix::thread::{CpuSet, sched_setaffinity};
use serde::Serialize;

use crate::args::Pin;
use crate::failure::Failure;
use crate::size;

/// A CPU for each thread; `None`: wherever the kernel likes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Plan {
    pub initiator_shard: Option<u32>,
    pub target_shard: Option<u32>,
    pub caller: Option<u32>,
    /// The user named the CPUs: failing to bind is an error.
    #[serde(skip)]
    pub require: bool,
}

impl Plan {
    /// Two processes on this machine.
    pub(crate) fn pair(pin: &Pin, allowed: &[u32]) -> Result<Self, Failure> {
        let (cpus, require) = chosen(pin, allowed, 3)?;
        let first = cpus.first().copied();
        let target_shard = cpus.get(1).copied().or(first);
        let caller = cpus.get(2).copied().or(first);
        Ok(Self { initiator_shard: first, target_shard, caller, require })
    }

    /// One process: its shard, and the caller beside it if there is room.
    pub(crate) fn single(pin: &Pin, allowed: &[u32]) -> Result<Self, Failure> {
        let (cpus, require) = chosen(pin, allowed, 2)?;
        let first = cpus.first().copied();
        let caller = cpus.get(1).copied().or(first);
        Ok(Self { initiator_shard: first, target_shard: None, caller, require })
    }

    /// Words for the table's head.
    pub(crate) fn describe(&self) -> String {
        let cpu = |cpu: Option<u32>| cpu.map_or("any CPU".to_owned(), |cpu| format!("CPU {cpu}"));
        let target = match self.target_shard {
            Some(target) => format!(", target shard on {}", cpu(Some(target))),
            None => String::new(),
        };
        let (shard, caller) = (cpu(self.initiator_shard), cpu(self.caller));
        format!("initiator shard on {shard}{target}, caller on {caller}")
    }
}

fn chosen(pin: &Pin, allowed: &[u32], most: usize) -> Result<(Vec<u32>, bool), Failure> {
    match pin {
        Pin::None => Ok((Vec::new(), false)),
        Pin::Auto => Ok((allowed.iter().copied().take(most).collect(), false)),
        Pin::List(cpus) if cpus.len() > most => {
            Err(Failure::usage(format!("--pin names {} CPUs; {most} are used", cpus.len())))
        }
        Pin::List(cpus) => match cpus.iter().find(|cpu| !allowed.contains(cpu)) {
            Some(cpu) => {
                Err(Failure::usage(format!("--pin names CPU {cpu}, which is not allowed"))
                    .because(format!("this process may use {allowed:?}")))
            }
            None => Ok((cpus.clone(), true)),
        },
    }
}

/// CPUs in the affinity mask of this process, ascending. Empty if the kernel does not say.
pub(crate) fn allowed() -> Vec<u32> {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    list.and_then(|list| size::cpu_list(list).ok()).unwrap_or_default()
}

/// Binds the calling thread, which must have made its engine before: the engine counts the CPUs of
/// the thread that makes it. A refusal counts only if the user named the CPUs.
pub(crate) fn bind_caller(plan: &Plan) -> Result<(), Failure> {
    let Some(cpu) = plan.caller else { return Ok(()) };
    let bound = bind(cpu);
    if plan.require { bound } else { Ok(()) }
}

fn bind(cpu: u32) -> Result<(), Failure> {
    let refused = || Failure::environment(format!("cannot bind a thread to CPU {cpu}"));
    let index = cpu as usize;
    if index >= CpuSet::MAX_CPU {
        return Err(
            refused().because(format!("numbers from {} on are not handled", CpuSet::MAX_CPU))
        );
    }
    let mut set = CpuSet::new();
    set.set(index);
    sched_setaffinity(None, &set).map_err(|error| refused().because(error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::Exit;

    fn pair(pin: &Pin, allowed: &[u32]) -> (Option<u32>, Option<u32>, Option<u32>) {
        let plan = Plan::pair(pin, allowed).unwrap();
        (plan.initiator_shard, plan.target_shard, plan.caller)
    }

    #[test]
    fn with_few_cpus_the_caller_shares_with_its_own_shard() {
        assert_eq!(pair(&Pin::Auto, &[2, 5, 7, 9]), (Some(2), Some(5), Some(7)));
        assert_eq!(pair(&Pin::Auto, &[2, 5]), (Some(2), Some(5), Some(2)));
        assert_eq!(pair(&Pin::Auto, &[4]), (Some(4), Some(4), Some(4)));
        assert_eq!(pair(&Pin::Auto, &[]), (None, None, None));
        assert_eq!(pair(&Pin::None, &[0, 1]), (None, None, None));
    }

    #[test]
    fn a_list_is_taken_as_written_or_refused() {
        let list = |cpus: &[u32]| Pin::List(cpus.to_vec());
        assert_eq!(pair(&list(&[1, 0]), &[0, 1]), (Some(1), Some(0), Some(1)));
        assert_eq!(pair(&list(&[3]), &[1, 3]), (Some(3), Some(3), Some(3)));
        for (cpus, allowed) in [(&[9][..], &[0, 1][..]), (&[0, 1, 2, 3], &[0, 1, 2, 3])] {
            let failure = Plan::pair(&list(cpus), allowed).unwrap_err();
            assert_eq!(failure.exit, Exit::Usage);
        }
        assert!(Plan::pair(&list(&[0]), &[0]).unwrap().require);
        assert!(!Plan::pair(&Pin::Auto, &[0]).unwrap().require);
    }

    #[test]
    fn the_plan_is_told_in_words() {
        let plan = Plan::pair(&Pin::Auto, &[0, 1]).unwrap();
        let words = "initiator shard on CPU 0, target shard on CPU 1, caller on CPU 0";
        assert_eq!(plan.describe(), words);
        let plan = Plan::single(&Pin::None, &[0]).unwrap();
        assert_eq!(plan.describe(), "initiator shard on any CPU, caller on any CPU");
    }

    #[test]
    fn the_mask_of_this_process_can_be_read_and_bound_to() {
        let cpus = allowed();
        assert!(!cpus.is_empty());
        assert!(bind(u32::MAX).is_err());
        // A thread of its own, since binding lasts.
        let bound = std::thread::Builder::new().spawn(move || bind(cpus[0])).unwrap();
        assert_eq!(bound.join().unwrap(), Ok(()));
    }
}
