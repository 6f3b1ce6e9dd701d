//! Which consecutive requests become one owner: one attempt, one outcome.
//!
//! Only neighbours in the order of the call are joined, so request order is never lost. What is joined
//! must agree in everything that could decide its fate.

use alloc::vec::Vec;

use crate::types::{Priority, RegionKey};

/// One request with both ranges resolved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Task {
    /// First local byte.
    pub local: u64,
    /// The local registration.
    pub registration: RegionKey,
    /// The peer's region.
    pub region: RegionKey,
    /// Offset in that region.
    pub offset: u64,
    pub length: u64,
    pub priority: Priority,
    /// Deadline in nanoseconds since the engine's start; 0 for none.
    pub deadline: u64,
}

/// One dispatchable unit: `tasks` consecutive tasks from `first`, contiguous on both sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Owner {
    pub first: u32,
    pub tasks: u32,
    pub local: u64,
    pub region: RegionKey,
    pub offset: u64,
    pub length: u64,
}

/// Builds owners from tasks in order.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Merger {
    enabled: bool,
    max_bytes: u64,
    last: Option<Task>,
    count: u32,
}

impl Merger {
    pub const fn new(enabled: bool, max_bytes: u64) -> Self {
        Self { enabled, max_bytes, last: None, count: 0 }
    }

    /// Adds the next task: joins it to the last owner or begins a new one.
    pub fn push(&mut self, owners: &mut Vec<Owner>, task: Task) {
        let index = self.count;
        self.count += 1;
        let joined = match (self.last, owners.last_mut()) {
            (Some(last), Some(owner)) => self.enabled && join(owner, last, task, self.max_bytes),
            _ => false,
        };
        if !joined {
            owners.push(Owner {
                first: index,
                tasks: 1,
                local: task.local,
                region: task.region,
                offset: task.offset,
                length: task.length,
            });
        }
        self.last = Some(task);
    }
}

fn join(owner: &mut Owner, last: Task, task: Task, max_bytes: u64) -> bool {
    let alike = last.registration == task.registration
        && last.region == task.region
        && last.priority == task.priority
        && last.deadline == task.deadline;
    let contiguous = owner.local.checked_add(owner.length) == Some(task.local)
        && owner.offset.checked_add(owner.length) == Some(task.offset);
    let Some(length) = owner.length.checked_add(task.length) else { return false };
    if !alike || !contiguous || length > max_bytes {
        return false;
    }
    owner.tasks += 1;
    owner.length = length;
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec;

    const REGION: RegionKey = RegionKey { id: 7, generation: 1 };
    const LOCAL: RegionKey = RegionKey { id: 3, generation: 1 };

    fn task(local: u64, offset: u64, length: u64) -> Task {
        let (priority, deadline) = (Priority::High, 0);
        Task { local, registration: LOCAL, region: REGION, offset, length, priority, deadline }
    }

    fn owners(enabled: bool, max_bytes: u64, tasks: &[Task]) -> Vec<Owner> {
        let mut merger = Merger::new(enabled, max_bytes);
        let mut owners = vec![];
        for task in tasks {
            merger.push(&mut owners, *task);
        }
        owners
    }

    #[test]
    fn contiguous_neighbours_become_one_owner() {
        let tasks = [task(100, 0, 10), task(110, 10, 5), task(115, 15, 1), task(200, 16, 4)];
        let owners = owners(true, 1 << 20, &tasks);
        assert_eq!(owners.len(), 2);
        assert_eq!((owners[0].first, owners[0].tasks, owners[0].length), (0, 3, 16));
        assert_eq!((owners[1].first, owners[1].tasks, owners[1].length), (3, 1, 4));
    }

    #[test]
    fn the_same_shuffled_is_neither_reordered_nor_merged() {
        let tasks = [task(110, 10, 5), task(100, 0, 10), task(115, 15, 1)];
        let owners = owners(true, 1 << 20, &tasks);
        assert_eq!(owners.iter().map(|o| o.local).collect::<Vec<_>>(), [110, 100, 115]);
    }

    /// CORE-041: a registration's border ends an owner.
    #[test]
    fn core_041_a_border_or_a_differing_attribute_ends_an_owner() {
        let base = [task(100, 0, 10), task(110, 10, 10)];
        let differing: [fn(&mut Task); 4] = [
            |t| t.registration.id = 4,
            |t| t.region.generation = 2,
            |t| t.priority = Priority::Low,
            |t| t.deadline = 5,
        ];
        for change in differing {
            let mut tasks = base;
            change(&mut tasks[1]);
            assert_eq!(owners(true, 1 << 20, &tasks).len(), 2);
        }
        assert_eq!(owners(true, 1 << 20, &base).len(), 1);
        assert_eq!(owners(true, 19, &base).len(), 2, "longer than a merged run may be");
        assert_eq!(owners(false, 1 << 20, &base).len(), 2, "merging is off");
    }

    #[test]
    fn sums_near_the_end_of_the_address_space_do_not_wrap() {
        let tasks = [task(u64::MAX - 9, 0, 10), task(0, 10, 10)];
        assert_eq!(owners(true, u64::MAX, &tasks).len(), 2);
    }
}
