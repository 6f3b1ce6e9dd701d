//! A sorted map for snapshots: a B+ tree whose nodes are shared between copies. Copying it copies one
//! pointer; changing a copy copies the nodes from the root to one leaf. So the cost of a change hardly
//! grows with the number of entries, and not at all with the number of changes before it.

use std::fmt;
use std::slice;
use std::sync::Arc;

/// Entries of a node at most. A change copies one node for each level, so small nodes are cheap to
/// change and large ones are quick to search; this is four levels for a million entries.
pub(super) const NODE_MAX: usize = 32;
/// Neighbours whose entries together are no more than this become one, so that removals in random order
/// leave no trail of small nodes. Lower than the maximum, so that one entry does not split and join.
const JOIN_MAX: usize = NODE_MAX * 3 / 4;
/// Bits of one step of a [`Position`].
const STEP: u32 = 6;
const _: () = assert!(NODE_MAX < 1 << STEP, "a step names any entry of a node");

/// An entry: a unique key to sort by, and how far it reaches.
pub(super) trait Entry: Clone {
    type Key: Copy + Ord + fmt::Debug;
    fn key(&self) -> Self::Key;
    /// One past the last address, where the map is asked for containment; 0 elsewhere.
    fn end(&self) -> u64;
}

#[derive(Clone, Debug)]
enum Node<E: Entry> {
    Leaf(Vec<E>),
    Inner(Vec<Child<E>>),
}

/// A subtree with what a search needs to know of it. All leaves of a tree are equally deep.
#[derive(Debug)]
struct Child<E: Entry> {
    /// Key of the first entry.
    first: E::Key,
    /// Largest end of all entries.
    max_end: u64,
    node: Arc<Node<E>>,
}

impl<E: Entry> Clone for Child<E> {
    fn clone(&self) -> Self {
        Self { node: Arc::clone(&self.node), ..*self }
    }
}

#[derive(Debug)]
pub(super) struct Tree<E: Entry> {
    /// Never empty.
    root: Option<Child<E>>,
}

impl<E: Entry> Clone for Tree<E> {
    fn clone(&self) -> Self {
        Self { root: self.root.clone() }
    }
}

/// Where an entry stands, one step for each level, the root's lowest. Valid in the one tree that
/// answered it, while that does not change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Position(u64);

impl<E: Entry> Tree<E> {
    pub const fn new() -> Self {
        Self { root: None }
    }

    /// All entries in order of their keys.
    pub fn iter(&self) -> Iter<'_, E> {
        let mut iter = Iter { inner: Vec::new(), leaf: [].iter() };
        if let Some(root) = &self.root {
            iter.descend(root);
        }
        iter
    }

    /// The entry of exactly that key.
    pub fn find(&self, key: E::Key) -> Option<(Position, &E)> {
        let mut node = &*self.root.as_ref()?.node;
        let (mut path, mut shift) = (0, 0);
        loop {
            match node {
                Node::Leaf(entries) => {
                    let index = entries.binary_search_by_key(&key, E::key).ok()?;
                    let path = path | (index as u64) << shift;
                    return Some((Position(path), entries.get(index)?));
                }
                Node::Inner(children) => {
                    let index = child_of(children, key);
                    path |= (index as u64) << shift;
                    node = &children.get(index)?.node;
                }
            }
            shift += STEP;
        }
    }

    /// The entry at a position that `find` answered.
    pub fn at(&self, position: Position) -> Option<&E> {
        let mut node = &*self.root.as_ref()?.node;
        let mut path = position.0;
        loop {
            let index = (path & ((1 << STEP) - 1)) as usize;
            match node {
                Node::Leaf(entries) => return entries.get(index),
                Node::Inner(children) => node = &children.get(index)?.node,
            }
            path >>= STEP;
        }
    }

    /// The last entry that `below` holds for, and the one after it. `below` must hold for a prefix.
    pub fn around(&self, below: impl Fn(&E::Key) -> bool) -> (Option<&E>, Option<&E>) {
        let Some(mut child) = self.root.as_ref() else { return (None, None) };
        let mut right = None;
        loop {
            match &*child.node {
                Node::Leaf(entries) => {
                    let upto = entries.partition_point(|entry| below(&entry.key()));
                    let before = upto.checked_sub(1).and_then(|last| entries.get(last));
                    let after = entries.get(upto).or_else(|| right.and_then(Child::first_entry));
                    return (before, after);
                }
                Node::Inner(children) => {
                    let upto = children.partition_point(|child| below(&child.first));
                    right = children.get(upto.max(1)).or(right);
                    let Some(next) = children.get(upto.saturating_sub(1)) else {
                        return (None, None);
                    };
                    child = next;
                }
            }
        }
    }

    /// Visits the entries that `below` holds for and that reach to `end`, from the last to the first,
    /// until `visit` answers something. `below` must hold for a prefix. Subtrees that do not reach so far
    /// are skipped.
    pub fn last_reaching<T>(
        &self,
        below: impl Fn(&E::Key) -> bool,
        end: u64,
        mut visit: impl FnMut(&E) -> Option<T>,
    ) -> Option<T> {
        self.root.as_ref()?.last_reaching(&below, end, &mut visit)
    }

    /// Adds an entry; its key must be new.
    pub fn insert(&mut self, entry: E) {
        let Some(root) = &mut self.root else {
            self.root = Child::of(Node::Leaf(vec![entry]));
            return;
        };
        if let Some(sibling) = root.insert(entry, true) {
            let children = vec![root.clone(), sibling];
            self.root = Child::of(Node::Inner(children));
        }
    }

    /// Removes the entry of exactly that key. False if there is none.
    pub fn remove(&mut self, key: E::Key) -> bool {
        if self.find(key).is_none() {
            return false;
        }
        if let Some(root) = &mut self.root {
            root.remove(key);
        }
        while let Some(root) = &self.root {
            let lower = match &*root.node {
                Node::Leaf(entries) if entries.is_empty() => None,
                Node::Inner(children) if children.len() <= 1 => children.first().cloned(),
                _ => break,
            };
            self.root = lower;
        }
        true
    }

    /// Number of nodes.
    #[cfg(test)]
    fn nodes(&self) -> usize {
        fn nodes<E: Entry>(child: &Child<E>) -> usize {
            match &*child.node {
                Node::Leaf(_) => 1,
                Node::Inner(children) => 1 + children.iter().map(nodes).sum::<usize>(),
            }
        }
        self.root.as_ref().map_or(0, nodes)
    }
}

impl<E: Entry> Child<E> {
    /// None for an empty node.
    fn of(node: Node<E>) -> Option<Self> {
        let (first, max_end) = node.summary()?;
        Some(Self { first, max_end, node: Arc::new(node) })
    }

    fn first_entry(&self) -> Option<&E> {
        match &*self.node {
            Node::Leaf(entries) => entries.first(),
            Node::Inner(children) => children.first()?.first_entry(),
        }
    }

    fn last_reaching<T>(
        &self,
        below: &impl Fn(&E::Key) -> bool,
        end: u64,
        visit: &mut impl FnMut(&E) -> Option<T>,
    ) -> Option<T> {
        if self.max_end < end {
            return None;
        }
        match &*self.node {
            Node::Leaf(entries) => {
                let upto = entries.partition_point(|entry| below(&entry.key()));
                let before = entries.iter().take(upto).rev();
                before.filter(|entry| entry.end() >= end).find_map(visit)
            }
            Node::Inner(children) => {
                let upto = children.partition_point(|child| below(&child.first));
                let mut before = children.iter().take(upto).rev();
                before.find_map(|child| child.last_reaching(below, end, visit))
            }
        }
    }

    /// Adds an entry. Where that is one too many, answers the upper part as a new sibling. `at_end`:
    /// nothing in the tree comes after this subtree.
    fn insert(&mut self, entry: E, at_end: bool) -> Option<Self> {
        let key = entry.key();
        let sibling = match own(&mut self.node) {
            Node::Leaf(entries) => {
                let index = entries.partition_point(|other| other.key() < key);
                insert_or_split(entries, index, entry, at_end).map(Node::Leaf)
            }
            Node::Inner(children) => {
                let index = child_of(children, key);
                let child_at_end = at_end && index + 1 == children.len();
                let child = children.get_mut(index)?;
                let split = child.insert(entry, child_at_end);
                let add = |split| insert_or_split(children, index + 1, split, at_end);
                split.and_then(add).map(Node::Inner)
            }
        };
        self.summarise();
        sibling.and_then(Self::of)
    }

    /// Removes the entry of a key that is there. May leave an empty node.
    fn remove(&mut self, key: E::Key) {
        match own(&mut self.node) {
            Node::Leaf(entries) => {
                if let Ok(index) = entries.binary_search_by_key(&key, E::key) {
                    entries.remove(index);
                }
            }
            Node::Inner(children) => {
                let index = child_of(children, key);
                let Some(child) = children.get_mut(index) else { return };
                child.remove(key);
                if child.node.len() == 0 {
                    children.remove(index);
                } else if !join(children, index) && index > 0 {
                    join(children, index - 1);
                }
            }
        }
        self.summarise();
    }

    fn summarise(&mut self) {
        if let Some((first, max_end)) = self.node.summary() {
            (self.first, self.max_end) = (first, max_end);
        }
    }
}

impl<E: Entry> Node<E> {
    fn len(&self) -> usize {
        match self {
            Self::Leaf(entries) => entries.len(),
            Self::Inner(children) => children.len(),
        }
    }

    fn summary(&self) -> Option<(E::Key, u64)> {
        match self {
            Self::Leaf(entries) => {
                Some((entries.first()?.key(), entries.iter().map(E::end).max()?))
            }
            Self::Inner(children) => {
                Some((children.first()?.first, children.iter().map(|child| child.max_end).max()?))
            }
        }
    }
}

/// The child that holds `key` or would: the last one that begins at or before it, else the first.
fn child_of<E: Entry>(children: &[Child<E>], key: E::Key) -> usize {
    children.partition_point(|child| child.first <= key).saturating_sub(1)
}

/// Inserts, or answers the upper part if there is no room.
fn insert_or_split<T>(items: &mut Vec<T>, index: usize, item: T, at_end: bool) -> Option<Vec<T>> {
    if items.len() < NODE_MAX {
        items.insert(index, item);
        return None;
    }
    if at_end && index == items.len() {
        // Growth at the end leaves full nodes behind: region ids only rise.
        return Some(vec![item]);
    }
    let mut upper = items.split_off(NODE_MAX / 2);
    match index.checked_sub(NODE_MAX / 2) {
        Some(index) => upper.insert(index, item),
        None => items.insert(index, item),
    }
    Some(upper)
}

/// Joins a child with the next one if both are small.
fn join<E: Entry>(children: &mut Vec<Child<E>>, index: usize) -> bool {
    let (left, right) = children.split_at_mut(index + 1);
    let (Some(left), Some(right)) = (left.last_mut(), right.first()) else { return false };
    if left.node.len() + right.node.len() > JOIN_MAX {
        return false;
    }
    count_copies(right.node.len());
    match (own(&mut left.node), &*right.node) {
        (Node::Leaf(left), Node::Leaf(right)) => left.extend(right.iter().cloned()),
        (Node::Inner(left), Node::Inner(right)) => left.extend(right.iter().cloned()),
        // Not of one depth, which does not happen.
        _ => return false,
    }
    left.summarise();
    children.remove(index + 1);
    true
}

/// The node for writing: itself if no other tree has it, else a copy.
fn own<E: Entry>(node: &mut Arc<Node<E>>) -> &mut Node<E> {
    if Arc::get_mut(node).is_none() {
        count_copies(node.len());
    }
    Arc::make_mut(node)
}

/// Entries in order of their keys.
pub(super) struct Iter<'a, E: Entry> {
    inner: Vec<slice::Iter<'a, Child<E>>>,
    leaf: slice::Iter<'a, E>,
}

impl<'a, E: Entry> Iter<'a, E> {
    /// Goes to the first leaf of a subtree.
    fn descend(&mut self, mut child: &'a Child<E>) {
        loop {
            match &*child.node {
                Node::Leaf(entries) => {
                    self.leaf = entries.iter();
                    return;
                }
                Node::Inner(children) => {
                    let mut children = children.iter();
                    let Some(first) = children.next() else { return };
                    self.inner.push(children);
                    child = first;
                }
            }
        }
    }
}

impl<'a, E: Entry> Iterator for Iter<'a, E> {
    type Item = &'a E;

    fn next(&mut self) -> Option<&'a E> {
        loop {
            if let Some(entry) = self.leaf.next() {
                return Some(entry);
            }
            match self.inner.last_mut()?.next() {
                Some(child) => self.descend(child),
                None => drop(self.inner.pop()),
            }
        }
    }
}

#[cfg(test)]
thread_local! {
    static COPIED: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// Tests measure work by the pointers that were copied, not by the time it took.
#[cfg(test)]
fn count_copies(pointers: usize) {
    COPIED.set(COPIED.get() + pointers);
}

#[cfg(not(test))]
fn count_copies(_pointers: usize) {}

/// Pointers that this thread copied since it last asked.
#[cfg(test)]
pub(super) fn take_copies() -> usize {
    COPIED.take()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An interval with an age, sorted like registrations by address.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    struct Interval {
        start: u64,
        end: u64,
        age: u64,
    }

    impl Entry for Interval {
        type Key = (u64, u64);
        fn key(&self) -> (u64, u64) {
            (self.start, !self.age)
        }
        fn end(&self) -> u64 {
            self.end
        }
    }

    /// Numbers that only look random, the same in every run.
    struct Numbers(u64);

    impl Numbers {
        fn below(&mut self, limit: u64) -> u64 {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            self.0 % limit
        }
    }

    fn model_answer(model: &[Interval], start: u64, end: u64) -> Option<Interval> {
        let containing = model.iter().filter(|one| one.start <= start && one.end >= end);
        containing.max_by_key(|one| (one.start, std::cmp::Reverse(one.age))).copied()
    }

    /// All leaves are equally deep, no node is empty or too large, and what a child says is true.
    fn depth(child: &Child<Interval>) -> usize {
        let summary = child.node.summary().unwrap();
        assert_eq!((child.first, child.max_end), summary);
        assert!(child.node.len() <= NODE_MAX);
        match &*child.node {
            Node::Leaf(_) => 1,
            Node::Inner(children) => {
                let depths: Vec<_> = children.iter().map(depth).collect();
                assert!(depths.windows(2).all(|pair| pair[0] == pair[1]), "{depths:?}");
                1 + depths[0]
            }
        }
    }

    fn check(tree: &Tree<Interval>, model: &[Interval], numbers: &mut Numbers) {
        let mut sorted = model.to_vec();
        sorted.sort_by_key(Interval::key);
        assert!(tree.iter().eq(sorted.iter()));
        assert!(tree.root.as_ref().map_or(0, depth) <= 5);
        for _ in 0..8 {
            let start = numbers.below(5_000);
            let end = start + 1 + numbers.below(60);
            let answer = tree.last_reaching(|key| key.0 <= start, end, |one| Some(*one));
            assert_eq!(answer, model_answer(model, start, end), "{start}..{end}");
        }
        for one in model.iter().take(3) {
            let (position, found) = tree.find(one.key()).unwrap();
            assert_eq!((found, tree.at(position)), (one, Some(one)));
        }
    }

    #[test]
    fn it_answers_as_a_plain_list_does_and_old_copies_stay_as_they_were() {
        for seed in 1..=6 {
            let mut numbers = Numbers(seed << 40 | 0x9e37_79b9);
            let (mut tree, mut model) = (Tree::new(), Vec::new());
            let mut old: Option<(Tree<Interval>, Vec<Interval>)> = None;
            for age in 0..3_000 {
                let grows = age < 1_200 || numbers.below(5) < 2;
                if grows || model.is_empty() {
                    let start = numbers.below(5_000);
                    let length = if numbers.below(40) == 0 { 4_000 } else { numbers.below(80) + 1 };
                    let one = Interval { start, end: start + length, age };
                    tree.insert(one);
                    model.push(one);
                } else {
                    let one: Interval =
                        model.swap_remove(numbers.below(model.len() as u64) as usize);
                    assert!(tree.remove(one.key()));
                    assert!(!tree.remove(one.key()));
                }
                if age % 100 == 0 {
                    check(&tree, &model, &mut numbers);
                    if let Some((tree, model)) = old.replace((tree.clone(), model.clone())) {
                        check(&tree, &model, &mut numbers);
                    }
                }
            }
        }
    }

    #[test]
    fn removals_in_any_order_leave_no_trail_of_small_nodes() {
        let mut tree = Tree::new();
        let mut all: Vec<Interval> =
            (0..10_000).map(|n| Interval { start: n, end: n + 1, age: n }).collect();
        for one in &all {
            tree.insert(*one);
        }
        let dense = 10_000 / NODE_MAX + 10_000 / (NODE_MAX * NODE_MAX) + 4;
        assert!(tree.nodes() <= dense, "growth at the end is dense: {}", tree.nodes());
        let mut numbers = Numbers(7);
        while all.len() > 100 {
            let one = all.swap_remove(numbers.below(all.len() as u64) as usize);
            assert!(tree.remove(one.key()));
        }
        assert!(tree.nodes() <= 40, "{} nodes for 100 entries", tree.nodes());
        for one in all {
            assert!(tree.remove(one.key()));
        }
        assert_eq!((tree.nodes(), tree.iter().count()), (0, 0));
    }

    #[test]
    fn neighbours_are_found_on_both_sides() {
        let mut tree = Tree::new();
        assert_eq!(tree.around(|key: &(u64, u64)| key.0 <= 5), (None, None));
        for n in 1..=1_000u64 {
            tree.insert(Interval { start: n * 10, end: n * 10 + 1, age: n });
        }
        let starts = |at: u64| {
            let (before, after) = tree.around(|key| key.0 <= at);
            (before.map(|one| one.start), after.map(|one| one.start))
        };
        assert_eq!(starts(5), (None, Some(10)));
        assert_eq!(starts(1_285), (Some(1_280), Some(1_290)));
        assert_eq!(starts(20_000), (Some(10_000), None));
    }
}
