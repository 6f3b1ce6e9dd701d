//! The inject queue of a shard: what has no ring of its own.

use crossbeam_queue::ArrayQueue;

/// Bounded queue of many producers and one shard. Its memory is taken once, at start; full is an
/// answer and never a wait. Each producer's messages keep their order.
///
/// A push does not wake the shard: ring its bell afterwards.
#[derive(Debug)]
pub(crate) struct Inject<T>(ArrayQueue<T>);

impl<T> Inject<T> {
    /// For at most `capacity` messages at a time, at least one.
    pub(crate) fn with_capacity(capacity: usize) -> Self {
        Self(ArrayQueue::new(capacity.max(1)))
    }

    /// Appends, or gives the message back: the queue is full.
    pub(crate) fn push(&self, message: T) -> Result<(), T> {
        self.0.push(message)
    }

    /// The oldest message. `None`: empty, or a producer is in the middle of its push.
    pub(crate) fn pop(&self) -> Option<T> {
        self.0.pop()
    }

    /// Messages now in it, at the moment of the look.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// False from the moment that a push has taken its place; so a shard that finds it empty after
    /// announcing its sleep may sleep: a later push rings.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
#[cfg(not(orbite_loom))]
mod tests {
    use super::Inject;

    #[test]
    fn full_gives_the_message_back() {
        let queue = Inject::with_capacity(2);
        assert_eq!((queue.push(1), queue.push(2), queue.push(3)), (Ok(()), Ok(()), Err(3)));
        assert_eq!((queue.pop(), queue.push(3)), (Some(1), Ok(())));
        assert_eq!(queue.len(), 2);
        assert_eq!((queue.pop(), queue.pop(), queue.pop()), (Some(2), Some(3), None));
        assert!(queue.is_empty());
    }

    #[test]
    fn without_a_capacity_one_fits() {
        let queue = Inject::with_capacity(0);
        assert_eq!((queue.push('a'), queue.push('b')), (Ok(()), Err('b')));
    }
}
