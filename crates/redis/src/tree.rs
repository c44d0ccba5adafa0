//! Trees of pages: how the elements of a spread collection lie in records of their own.
//!
//! A *spread* collection is one that is too large to be stored as one value. Its elements are in
//! the leaves of a tree. Each leaf and each inner node is a *page*, which is stored in records of
//! its own. The root is stored with the key. So a command that uses a few elements reads and writes
//! a few pages.
//!
//! ```text
//! root     | next page : v | height : 1 | bytes : v | bytes in the small encoding : v | children |
//! inner    | 1 | children |
//! leaf     | 0 | number : v | length : v | key | length : v | value |   of each element
//! children | number : v | length : v | low key | page : v | elements : v | parts : 1 |   of each
//! ```
//!
//! A number `v` has 7 bits a byte, the lowest first. Elements are ordered by their keys. In a list
//! the keys are empty, and an element is found by its place alone.
//!
//! # Pages are loaded on demand
//!
//! A tree in memory has some of its pages. Commands do no I/O. So an operation that needs a page
//! which is not there notes what it needs ([`Tree::take_wanted`]), changes nothing, and returns
//! anything. The caller loads the pages ([`Tree::missing`], [`Tree::supply`]) into a copy of the
//! tree that no command has changed, and runs the commands again.
//!
//! # Rules
//!
//! 1. **An answer counts only if nothing is wanted.** The notes are shared by all clones of a tree,
//!    so they stay when a command deletes the tree.
//! 2. **A child's count is the number of elements under it**, in every stored state.
//! 3. **No stored page is empty.** A page that loses its last element is removed from its parent.
//! 4. **A page's number is never used again** in its tree.
//! 5. **All elements under a child have keys of at least its low key**, except under the first
//!    child of a node. All have smaller keys than the low key of the next child.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::listpack;

/// Bytes of a record of a page. A page whose only element is longer has several.
pub const PART_BYTES: usize = 976;
/// Packed collections of more bytes are spread, unless a store has another limit.
pub const SPREAD_BYTES: usize = 8 << 10;
/// Bytes of the longest key of an element of a tree, such as a field or a member.
pub const KEY_BYTES_MAX: usize = 512;
/// Bytes of the longest value of an element of a tree.
pub const VALUE_BYTES_MAX: usize = 8 << 10;
/// Bytes from which on the children of the root move to a page.
const ROOT_BYTES: usize = 64;
/// The children of a root fit a page of this many bytes.
const PAGE_BYTES_MIN: usize = ROOT_BYTES + 8;
/// This many notes of what is wanted are kept. More are replaced by one for all elements.
const WANTED_MAX: usize = 1000;

// A page's header, its key and its value fit the parts that one byte can count.
const _: () = assert!((KEY_BYTES_MAX + VALUE_BYTES_MAX + 64).div_ceil(PART_BYTES) < 32);

/// An element of a tree.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Element {
    /// What it is ordered by. Empty in a list.
    pub key: Vec<u8>,
    /// What it holds.
    pub value: Vec<u8>,
}

/// What stands for an element whose page is not loaded.
static NOTHING: Element = Element { key: Vec::new(), value: Vec::new() };

/// A child of a node.
#[derive(Clone, PartialEq, Debug)]
struct Child {
    low: Vec<u8>,
    page: u64,
    count: u64,
    parts: u8,
}

impl Child {
    fn missing(&self) -> Missing {
        Missing { page: self.page, parts: self.parts, count: self.count }
    }
}

#[derive(Clone, PartialEq, Debug)]
enum Node {
    Leaf(Vec<Element>),
    Inner(Vec<Child>),
}

/// A page in memory.
#[derive(Clone, PartialEq, Debug)]
struct Page {
    node: Arc<Node>,
    /// The number of its records, or 0 if it is not stored yet.
    stored: u8,
    is_changed: bool,
}

/// A place in the store where the pages of a tree are: the id of the transaction that has stored
/// the first ones, and a number among the collections that this transaction has spread.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Home {
    /// The id of the transaction.
    pub id: u64,
    /// The number among its collections.
    pub index: u16,
}

/// What an operation needs of a tree, and has not found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Wanted {
    /// A page.
    Page(u64),
    /// The leaf where this key is, or would be.
    Key(Vec<u8>),
    /// The elements at these places.
    Places(Range<usize>),
}

/// The notes of what a tree and its clones have wanted.
#[derive(Clone, Debug, Default)]
pub struct Notes(Arc<Mutex<Vec<Wanted>>>);

impl Notes {
    fn all(&self) -> MutexGuard<'_, Vec<Wanted>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether nothing is wanted.
    pub fn is_empty(&self) -> bool {
        self.all().is_empty()
    }
}

/// A page that is not loaded.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Missing {
    /// The page's number.
    pub page: u64,
    /// The number of its records.
    pub parts: u8,
    /// The number of elements in it and under it.
    pub count: u64,
}

/// What the store must do with a page that has changed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Change {
    /// The page's number.
    pub page: u64,
    /// The number of records that the store has of it.
    pub stored: u8,
    /// The page's bytes. They are empty if the page is removed.
    pub bytes: Vec<u8>,
}

/// Elements in an order, in pages of which some are loaded.
#[derive(Clone, Debug)]
pub struct Tree {
    /// Where its pages are stored, if they are.
    pub home: Option<Home>,
    page_bytes: usize,
    next: u64,
    /// The number of levels of pages.
    height: u8,
    root: Vec<Child>,
    /// Bytes of all keys and values.
    bytes: u64,
    /// Bytes that all values take in the small encoding of Redis, in a list.
    listpack_bytes: u64,
    pages: BTreeMap<u64, Page>,
    /// Pages that the store has and the tree has not, with the numbers of their records.
    removed: Vec<(u64, u8)>,
    is_root_changed: bool,
    wanted: Notes,
}

impl PartialEq for Tree {
    /// Trees are equal if they have equal elements.
    fn eq(&self, other: &Tree) -> bool {
        self.elements(0..self.len()) == other.elements(0..other.len())
    }
}

/// One step from the root to a leaf: a node, or the root if there is none, and the place of the
/// child in it.
#[derive(Clone, Copy)]
struct Step {
    parent: Option<u64>,
    index: usize,
}

/// A way from the root to a leaf.
struct Path {
    steps: Vec<Step>,
    leaf: u64,
    /// The place of the leaf's first element in the tree.
    first: usize,
}

impl Tree {
    /// Builds a tree of elements in their order. All pages are in memory, and none is stored.
    pub fn build(elements: Vec<Element>, page_bytes: usize) -> Tree {
        let mut tree = Tree {
            home: None,
            page_bytes: page_bytes.clamp(PAGE_BYTES_MIN, PART_BYTES),
            next: 0,
            height: 1,
            root: Vec::new(),
            bytes: 0,
            listpack_bytes: 0,
            pages: BTreeMap::new(),
            removed: Vec::new(),
            is_root_changed: true,
            wanted: Notes::default(),
        };
        elements.iter().for_each(|element| tree.weigh(element, 1));
        // Pages have room for an eighth more.
        let room = tree.page_bytes - tree.page_bytes / 8;
        let mut children = Vec::new();
        let mut before: Option<Vec<u8>> = None;
        for leaf in groups(elements, room, element_bytes) {
            let low = before.map_or(Vec::new(), |before| between(&before, &leaf[0].key));
            before = leaf.last().map(|element| element.key.clone());
            children.push(tree.add_page(low, Node::Leaf(leaf)));
        }
        while children_bytes(&children) > ROOT_BYTES && children.len() > 2 {
            tree.height += 1;
            let nodes = groups(children, room, child_bytes);
            children = nodes.into_iter().map(|node| tree.add_page(node[0].low.clone(), Node::Inner(node))).collect();
        }
        tree.root = children;
        tree
    }

    /// Returns the number of elements.
    pub fn len(&self) -> usize {
        self.root.iter().map(|child| child.count as usize).sum()
    }

    /// Returns whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.root.is_empty()
    }

    /// Returns the bytes of all keys and values.
    pub fn bytes(&self) -> usize {
        self.bytes as usize
    }

    /// Returns the bytes that all values take in the small encoding of Redis.
    pub fn listpack_bytes(&self) -> usize {
        self.listpack_bytes as usize
    }

    /// Returns the value of a key.
    pub fn get(&self, key: &[u8]) -> Option<&[u8]> {
        let path = self.path_to_key(key).ok()?;
        let leaf = self.leaf(path.leaf);
        let place = leaf.binary_search_by(|element| element.key.as_slice().cmp(key)).ok()?;
        Some(&leaf[place].value)
    }

    /// Returns the element at a place. If its page is not loaded, returns an empty one.
    pub fn at(&self, place: usize) -> Option<&Element> {
        if place >= self.len() {
            return None;
        }
        let Ok(path) = self.path_to_place(place) else { return Some(&NOTHING) };
        self.leaf(path.leaf).get(place - path.first)
    }

    /// Returns the elements at places. An element whose page is not loaded is empty.
    pub fn elements(&self, places: Range<usize>) -> Vec<&Element> {
        let mut found = Vec::with_capacity(places.len());
        if let Err(page) = self.gather(&self.root, places.clone(), &mut found) {
            self.want_both(page, Wanted::Places(places.clone()));
            found = vec![&NOTHING; places.len()];
        }
        found
    }

    /// Returns how many elements come first for whose keys `is_below` holds. It holds for all keys
    /// before any for which it does.
    pub fn count_below(&self, is_below: impl Fn(&[u8]) -> bool) -> usize {
        if self.root.is_empty() {
            return 0;
        }
        let choose = |children: &[Child]| children[1..].partition_point(|child| is_below(&child.low));
        match self.descend(choose) {
            Ok(path) => path.first + self.leaf(path.leaf).partition_point(|element| is_below(&element.key)),
            Err(page) => {
                self.want(Wanted::Page(page));
                0
            }
        }
    }

    /// Sets the value of a key. Returns its former value.
    pub fn insert(&mut self, key: &[u8], value: &[u8]) -> Option<Vec<u8>> {
        let element = Element { key: key.to_vec(), value: value.to_vec() };
        if self.root.is_empty() {
            self.begin(element);
            return None;
        }
        let path = self.path_to_key(key).ok()?;
        match self.leaf(path.leaf).binary_search_by(|other| other.key.as_slice().cmp(key)) {
            Ok(place) => {
                self.weigh(&element, 1);
                let former = std::mem::replace(&mut self.leaf_mut(path.leaf)[place], element);
                self.weigh(&former, -1);
                self.fit(&path, None);
                Some(former.value)
            }
            Err(place) => {
                self.add(&path, place, element);
                None
            }
        }
    }

    /// Removes a key. Returns its value.
    pub fn remove(&mut self, key: &[u8]) -> Option<Vec<u8>> {
        let path = self.path_to_key(key).ok()?;
        let place = self.leaf(path.leaf).binary_search_by(|other| other.key.as_slice().cmp(key)).ok()?;
        Some(self.take(&path, place).value)
    }

    /// Inserts a value of a list at a place.
    pub fn insert_at(&mut self, place: usize, value: Vec<u8>) {
        let element = Element { key: Vec::new(), value };
        let length = self.len();
        if length == 0 {
            return self.begin(element);
        }
        // The last place is behind the last element, in its leaf.
        let Ok(path) = self.path_to_place(place.min(length - 1)) else { return };
        self.add(&path, place - path.first, element);
    }

    /// Replaces the value of a list at a place that is there.
    pub fn replace_at(&mut self, place: usize, value: Vec<u8>) {
        let Ok(path) = self.path_to_place(place) else { return };
        let element = Element { key: Vec::new(), value };
        self.weigh(&element, 1);
        let former = std::mem::replace(&mut self.leaf_mut(path.leaf)[place - path.first], element);
        self.weigh(&former, -1);
        self.fit(&path, None);
    }

    /// Removes the element at a place that is there. If its page is not loaded, returns an empty
    /// one.
    pub fn remove_at(&mut self, place: usize) -> Element {
        match self.path_to_place(place) {
            Ok(path) => self.take(&path, place - path.first),
            Err(()) => Element::default(),
        }
    }

    /// Returns the elements in the pages that are loaded, in no order.
    pub fn loaded(&self) -> impl Iterator<Item = &Element> {
        self.pages.values().flat_map(|page| match &*page.node {
            Node::Leaf(elements) => elements.as_slice(),
            Node::Inner(_) => &[],
        })
    }

    /// Adds the first element.
    fn begin(&mut self, element: Element) {
        self.weigh(&element, 1);
        self.height = 1;
        let child = self.add_page(Vec::new(), Node::Leaf(vec![element]));
        self.root.push(child);
        self.is_root_changed = true;
    }

    fn add(&mut self, path: &Path, place: usize, element: Element) {
        self.weigh(&element, 1);
        self.leaf_mut(path.leaf).insert(place, element);
        self.count(path, 1);
        self.fit(path, Some(place));
    }

    fn take(&mut self, path: &Path, place: usize) -> Element {
        let element = self.leaf_mut(path.leaf).remove(place);
        self.weigh(&element, -1);
        self.count(path, -1);
        self.fit(path, None);
        element
    }

    /// Counts the bytes of an element that is added, or of one that is removed.
    fn weigh(&mut self, element: &Element, times: i64) {
        let bytes = element.key.len() + element.value.len();
        self.bytes = self.bytes.wrapping_add_signed(times * bytes as i64);
        let in_listpack = if element.key.is_empty() { listpack::element_bytes(&element.value) } else { 0 };
        self.listpack_bytes = self.listpack_bytes.wrapping_add_signed(times * in_listpack as i64);
        self.is_root_changed = true;
    }

    /// Adds to the counts on the way to a leaf.
    fn count(&mut self, path: &Path, by: i64) {
        for step in &path.steps {
            let child = &mut self.children_mut(step.parent)[step.index];
            child.count = child.count.wrapping_add_signed(by);
        }
    }

    /// Splits the nodes of a path that have become too long, and removes nodes that have become
    /// empty. `at` is the place in the leaf where an element was inserted.
    fn fit(&mut self, path: &Path, mut at: Option<usize>) {
        for step in path.steps.iter().rev() {
            let (page, parts) = {
                let child = &self.children(step.parent)[step.index];
                (child.page, child.parts)
            };
            let node = Arc::clone(&self.pages[&page].node);
            if node.len() == 0 {
                self.children_mut(step.parent).remove(step.index);
                self.remove_page(page);
                at = None;
                continue;
            }
            if node.bytes() > self.page_bytes && node.len() > 1 {
                let mut pieces = node.split(self.page_bytes, at);
                let rest = pieces.split_off(1);
                self.set_node(page, pieces.remove(0).1);
                let added: Vec<Child> = rest.into_iter().map(|(low, node)| self.add_page(low, node)).collect();
                let moved: u64 = added.iter().map(|child| child.count).sum();
                let parts = parts_of(self.pages[&page].node.bytes());
                let children = self.children_mut(step.parent);
                (children[step.index].count, children[step.index].parts) = (children[step.index].count - moved, parts);
                let place = step.index + 1;
                at = Some(place);
                children.splice(place..place, added);
                continue;
            }
            at = None;
            if parts_of(node.bytes()) != parts {
                self.children_mut(step.parent)[step.index].parts = parts_of(node.bytes());
            }
        }
        self.fit_root();
    }

    /// Moves the children of the root to a page if they have become too many, or those of its only
    /// child to the root if they are few.
    fn fit_root(&mut self) {
        if self.root.len() > 2 && children_bytes(&self.root) > ROOT_BYTES {
            let nodes = groups(std::mem::take(&mut self.root), self.page_bytes, child_bytes);
            self.root = nodes.into_iter().map(|node| self.add_page(node[0].low.clone(), Node::Inner(node))).collect();
            self.height += 1;
            return;
        }
        if let [child] = &self.root[..]
            && let page = child.page
            && let Some(Page { node, .. }) = self.pages.get(&page)
            && let Node::Inner(children) = &**node
            && (children.len() == 1 || children_bytes(children) <= ROOT_BYTES / 2)
        {
            self.root = children.clone();
            self.height -= 1;
            self.remove_page(page);
            self.is_root_changed = true;
        }
    }

    fn add_page(&mut self, low: Vec<u8>, node: Node) -> Child {
        let page = self.next;
        self.next += 1;
        let child = Child { low, page, count: node.count(), parts: parts_of(node.bytes()) };
        self.pages.insert(page, Page { node: Arc::new(node), stored: 0, is_changed: true });
        child
    }

    fn set_node(&mut self, page: u64, node: Node) {
        if let Some(page) = self.pages.get_mut(&page) {
            (page.node, page.is_changed) = (Arc::new(node), true);
        }
    }

    fn remove_page(&mut self, page: u64) {
        if let Some(Page { stored: stored @ 1.., .. }) = self.pages.remove(&page) {
            self.removed.push((page, stored));
        }
    }

    fn leaf(&self, page: u64) -> &[Element] {
        match self.pages.get(&page).map(|page| &*page.node) {
            Some(Node::Leaf(elements)) => elements,
            _ => &[],
        }
    }

    fn leaf_mut(&mut self, page: u64) -> &mut Vec<Element> {
        let page = self.pages.get_mut(&page).expect("a path ends at a loaded leaf");
        page.is_changed = true;
        match Arc::make_mut(&mut page.node) {
            Node::Leaf(elements) => elements,
            Node::Inner(_) => unreachable!("a path ends at a leaf"),
        }
    }

    fn children(&self, parent: Option<u64>) -> &[Child] {
        let Some(page) = parent else { return &self.root };
        match self.pages.get(&page).map(|page| &*page.node) {
            Some(Node::Inner(children)) => children,
            _ => &[],
        }
    }

    fn children_mut(&mut self, parent: Option<u64>) -> &mut Vec<Child> {
        let Some(page) = parent else {
            self.is_root_changed = true;
            return &mut self.root;
        };
        let page = self.pages.get_mut(&page).expect("a path leads over loaded nodes");
        page.is_changed = true;
        match Arc::make_mut(&mut page.node) {
            Node::Inner(children) => children,
            Node::Leaf(_) => unreachable!("a path leads over inner nodes"),
        }
    }

    /// Goes from the root to a leaf. `choose` returns the place of the child of a node. Fails with
    /// the first page on the way that is not loaded.
    fn descend(&self, mut choose: impl FnMut(&[Child]) -> usize) -> Result<Path, u64> {
        let mut path = Path { steps: Vec::with_capacity(self.height.into()), leaf: 0, first: 0 };
        let (mut parent, mut children) = (None, &self.root[..]);
        loop {
            let index = choose(children);
            path.first += children[..index].iter().map(|child| child.count as usize).sum::<usize>();
            path.steps.push(Step { parent, index });
            let page = children[index].page;
            match self.pages.get(&page).map(|page| &*page.node) {
                None => return Err(page),
                Some(Node::Inner(below)) => (parent, children) = (Some(page), below),
                Some(Node::Leaf(_)) => {
                    path.leaf = page;
                    return Ok(path);
                }
            }
        }
    }

    fn way_to_key(&self, key: &[u8]) -> Result<Path, u64> {
        self.descend(|children| children[1..].partition_point(|child| child.low.as_slice() <= key))
    }

    fn way_to_place(&self, mut place: usize) -> Result<Path, u64> {
        self.descend(|children| {
            let mut index = 0;
            while index + 1 < children.len() && place >= children[index].count as usize {
                place -= children[index].count as usize;
                index += 1;
            }
            index
        })
    }

    /// Returns the way to the leaf of a key. If a page is not loaded, notes that it is wanted.
    fn path_to_key(&self, key: &[u8]) -> Result<Path, ()> {
        if self.root.is_empty() {
            return Err(());
        }
        self.way_to_key(key).map_err(|page| self.want_both(page, Wanted::Key(key.to_vec())))
    }

    fn path_to_place(&self, place: usize) -> Result<Path, ()> {
        if self.root.is_empty() {
            return Err(());
        }
        self.way_to_place(place).map_err(|page| self.want_both(page, Wanted::Places(place..place + 1)))
    }

    /// Appends the elements at places under a node. Fails with the first page that is not loaded.
    fn gather<'t>(
        &'t self,
        children: &'t [Child],
        places: Range<usize>,
        out: &mut Vec<&'t Element>,
    ) -> Result<(), u64> {
        for (child, under) in with_places(children, places) {
            match self.pages.get(&child.page).map(|page| &*page.node) {
                None => return Err(child.page),
                Some(Node::Leaf(elements)) => out.extend(elements.get(under).into_iter().flatten()),
                Some(Node::Inner(children)) => self.gather(children, under, out)?,
            }
        }
        Ok(())
    }
}

/// What the store does.
impl Tree {
    /// Notes that something is wanted, and the first page that is missing for it. In a tree that
    /// commands have changed, this page may be another one than in the tree that is loaded again.
    fn want_both(&self, page: u64, wanted: Wanted) {
        self.want(wanted);
        self.want(Wanted::Page(page));
    }

    fn want(&self, wanted: Wanted) {
        let mut all = self.wanted.all();
        if all.len() >= WANTED_MAX {
            all.clear();
            all.push(Wanted::Places(0..usize::MAX));
        } else if all.iter().rev().take(2).all(|known| *known != wanted) {
            all.push(wanted);
        }
    }

    /// Returns the notes that this tree shares with its clones.
    pub fn notes(&self) -> &Notes {
        &self.wanted
    }

    /// Takes the notes of what operations on this tree or its clones have needed and not found.
    pub fn take_wanted(&self) -> Vec<Wanted> {
        std::mem::take(&mut self.wanted.all())
    }

    /// Returns the next pages to load for what is wanted. When they are loaded, others may be
    /// missing.
    pub fn missing(&self, wanted: &[Wanted]) -> Vec<Missing> {
        let mut missing = Vec::new();
        for wanted in wanted.iter().filter(|_| !self.root.is_empty()) {
            match wanted {
                Wanted::Page(page) if self.pages.contains_key(page) => {}
                Wanted::Page(page) => missing.extend(self.missing_page(*page)),
                Wanted::Key(key) => missing.extend(self.way_to_key(key).err().and_then(|page| self.missing_page(page))),
                Wanted::Places(places) => {
                    self.missing_under(&self.root, places.start..places.end.min(self.len()), &mut missing);
                }
            }
        }
        missing.sort_unstable();
        missing.dedup();
        missing
    }

    /// Returns what to load for a page. Its parent is loaded, because what wants it has come there.
    fn missing_page(&self, page: u64) -> Option<Missing> {
        let nodes = self.pages.values().map(|page| page.node.children());
        nodes.chain([&self.root[..]]).flatten().find(|child| child.page == page).map(Child::missing)
    }

    fn missing_under(&self, children: &[Child], places: Range<usize>, missing: &mut Vec<Missing>) {
        for (child, under) in with_places(children, places) {
            match self.pages.get(&child.page) {
                None => missing.push(child.missing()),
                Some(page) => self.missing_under(page.node.children(), under, missing),
            }
        }
    }

    /// Loads a page from its bytes, which may have zeros behind them. Returns false if they are not
    /// those of the page, or if they are of another state of the tree.
    #[must_use]
    pub fn supply(&mut self, missing: Missing, bytes: &[u8]) -> bool {
        let node = Node::decode(bytes).filter(|node| node.len() > 0 && node.count() == missing.count);
        let Some(node) = node else { return false };
        self.pages.insert(missing.page, Page { node: Arc::new(node), stored: missing.parts, is_changed: false });
        true
    }

    /// Returns whether the root or a page has changed.
    pub fn is_changed(&self) -> bool {
        self.is_root_changed || self.pages.values().any(|page| page.is_changed)
    }

    /// Returns what the store must do with the pages that have changed.
    pub fn changes(&self) -> Vec<Change> {
        let changed = self.pages.iter().filter(|(_, page)| page.is_changed);
        let mut changes: Vec<Change> = changed
            .map(|(number, page)| Change { page: *number, stored: page.stored, bytes: page.node.encode() })
            .collect();
        changes.extend(self.removed.iter().map(|(page, stored)| Change {
            page: *page,
            stored: *stored,
            bytes: Vec::new(),
        }));
        changes
    }

    /// Returns the pages that the root leads to directly, and the number of levels of pages.
    pub fn top(&self) -> (Vec<Missing>, u8) {
        (self.root.iter().map(Child::missing).collect(), self.height)
    }

    /// Returns the pages under a page from its bytes, or `None` if the bytes are no page.
    pub fn under(bytes: &[u8]) -> Option<Vec<Missing>> {
        Some(Node::decode(bytes)?.children().iter().map(Child::missing).collect())
    }

    /// Returns whether all pages are loaded.
    pub fn is_whole(&self) -> bool {
        self.missing(&[Wanted::Places(0..usize::MAX)]).is_empty()
    }

    /// Notes that all pages are wanted.
    pub fn want_all(&self) {
        self.want(Wanted::Places(0..usize::MAX));
    }

    /// Appends the root's bytes.
    pub fn encode_root(&self, out: &mut Vec<u8>) {
        put(self.next, out);
        out.push(self.height);
        put(self.bytes, out);
        put(self.listpack_bytes, out);
        put_children(&self.root, out);
    }

    /// Reads a root. None of the tree's pages is loaded. Returns `None` if the bytes are no root.
    pub fn decode_root(bytes: &mut &[u8], home: Home, page_bytes: usize) -> Option<Tree> {
        let next = get(bytes)?;
        let (height, rest) = bytes.split_first()?;
        *bytes = rest;
        let (weight, listpack_bytes) = (get(bytes)?, get(bytes)?);
        let root = get_children(bytes)?;
        let is_possible = !root.is_empty() && (1..=16).contains(height);
        is_possible.then(|| Tree {
            home: Some(home),
            page_bytes: page_bytes.clamp(PAGE_BYTES_MIN, PART_BYTES),
            next,
            height: *height,
            root,
            bytes: weight,
            listpack_bytes,
            pages: BTreeMap::new(),
            removed: Vec::new(),
            is_root_changed: false,
            wanted: Notes::default(),
        })
    }

    /// Checks the rules on a tree whose pages are all loaded. Returns what is wrong.
    pub fn check(&self) -> Result<(), String> {
        let keys: Vec<&[u8]> = self.elements(0..self.len()).iter().map(|element| element.key.as_slice()).collect();
        if keys.iter().any(|key| !key.is_empty()) && !keys.is_sorted_by(|a, b| a < b) {
            return Err("keys are out of order".to_owned());
        }
        self.check_under(&self.root, self.height, None)
    }

    fn check_under(&self, children: &[Child], height: u8, end: Option<&[u8]>) -> Result<(), String> {
        for (place, child) in children.iter().enumerate() {
            let page = self.pages.get(&child.page).ok_or("a page is not loaded")?;
            let end = children.get(place + 1).map(|next| next.low.as_slice()).or(end);
            let bytes = page.node.bytes();
            if child.count != page.node.count() || child.parts != parts_of(bytes) || page.node.len() == 0 {
                return Err(format!("rule 2 or 3: child {child:?} of {page:?}"));
            }
            if bytes > self.page_bytes && page.node.len() > 1 {
                return Err(format!("a page of {bytes} bytes"));
            }
            match &*page.node {
                Node::Inner(children) if height > 1 => self.check_under(children, height - 1, end)?,
                Node::Leaf(elements) if height == 1 => {
                    let is_in = |key: &[u8]| (place == 0 || key >= &child.low[..]) && end.is_none_or(|end| key < end);
                    if elements.iter().any(|element| !element.key.is_empty() && !is_in(&element.key)) {
                        return Err(format!("rule 5: child {child:?} of {page:?}"));
                    }
                }
                _ => return Err("a leaf is at the wrong height".to_owned()),
            }
        }
        Ok(())
    }
}

impl Node {
    fn len(&self) -> usize {
        match self {
            Node::Leaf(elements) => elements.len(),
            Node::Inner(children) => children.len(),
        }
    }

    /// Returns the number of elements in this node and under it.
    fn count(&self) -> u64 {
        match self {
            Node::Leaf(elements) => elements.len() as u64,
            Node::Inner(children) => children.iter().map(|child| child.count).sum(),
        }
    }

    fn children(&self) -> &[Child] {
        match self {
            Node::Leaf(_) => &[],
            Node::Inner(children) => children,
        }
    }

    fn bytes(&self) -> usize {
        1 + match self {
            Node::Leaf(elements) => number_bytes(elements.len()) + elements.iter().map(element_bytes).sum::<usize>(),
            Node::Inner(children) => children_bytes(children),
        }
    }

    /// Splits a node into nodes that fit a page or have one element. Returns each with its low key.
    /// The first has an empty one.
    fn split(&self, page_bytes: usize, at: Option<usize>) -> Vec<(Vec<u8>, Node)> {
        let sizes: Vec<usize> = match self {
            Node::Leaf(elements) => elements.iter().map(element_bytes).collect(),
            Node::Inner(children) => children.iter().map(child_bytes).collect(),
        };
        let mut cuts = Vec::new();
        // A page that grows at an end stays full.
        match at {
            Some(at) if at + 1 == sizes.len() => {
                cut(&sizes, 0..at, page_bytes, &mut cuts);
                cuts.push(at);
            }
            Some(0) => {
                cuts.push(1);
                cut(&sizes, 1..sizes.len(), page_bytes, &mut cuts);
            }
            _ => cut(&sizes, 0..sizes.len(), page_bytes, &mut cuts),
        }
        let ends = cuts.iter().copied().chain([sizes.len()]);
        let mut begin = 0;
        let mut pieces = Vec::with_capacity(cuts.len() + 1);
        for end in ends {
            let piece = begin..end;
            pieces.push(match self {
                Node::Leaf(elements) => {
                    let low =
                        if begin == 0 { Vec::new() } else { between(&elements[begin - 1].key, &elements[begin].key) };
                    (low, Node::Leaf(elements[piece].to_vec()))
                }
                Node::Inner(children) => (children[begin].low.clone(), Node::Inner(children[piece].to_vec())),
            });
            begin = end;
        }
        pieces
    }

    fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(PART_BYTES);
        match self {
            Node::Leaf(elements) => {
                out.push(0);
                put(elements.len() as u64, &mut out);
                for element in elements {
                    put_bytes(&element.key, &mut out);
                    put_bytes(&element.value, &mut out);
                }
            }
            Node::Inner(children) => {
                out.push(1);
                put_children(children, &mut out);
            }
        }
        debug_assert_eq!(out.len(), self.bytes(), "the length that was computed");
        out
    }

    fn decode(bytes: &[u8]) -> Option<Node> {
        let (kind, mut rest) = bytes.split_first()?;
        match kind {
            0 => {
                let number = get(&mut rest)?;
                let mut elements = Vec::with_capacity(usize::try_from(number).ok()?.min(rest.len()));
                for _ in 0..number {
                    let (key, value) = (get_bytes(&mut rest)?, get_bytes(&mut rest)?);
                    elements.push(Element { key, value });
                }
                Some(Node::Leaf(elements))
            }
            1 => Some(Node::Inner(get_children(&mut rest)?)),
            _ => None,
        }
    }
}

/// Returns the children that have some of these places, each with those of its own places.
fn with_places(children: &[Child], places: Range<usize>) -> impl Iterator<Item = (&Child, Range<usize>)> {
    let mut first = 0;
    children.iter().filter_map(move |child| {
        let (begin, end) = (first, first + child.count as usize);
        first = end;
        let under = places.start.max(begin)..places.end.min(end);
        (!under.is_empty()).then(|| (child, under.start - begin..under.end - begin))
    })
}

/// Notes where to cut elements of these sizes, so that each piece fits a page or is one element.
fn cut(sizes: &[usize], piece: Range<usize>, page_bytes: usize, cuts: &mut Vec<usize>) {
    let total: usize = sizes[piece.clone()].iter().sum();
    if piece.len() < 2 || total + NODE_HEAD_BYTES <= page_bytes {
        return;
    }
    let (mut end, mut bytes) = (piece.start + 1, sizes[piece.start]);
    while end + 1 < piece.end && bytes + sizes[end] / 2 < total / 2 {
        bytes += sizes[end];
        end += 1;
    }
    cut(sizes, piece.start..end, page_bytes, cuts);
    cuts.push(end);
    cut(sizes, end..piece.end, page_bytes, cuts);
}

/// Bytes of a node before its elements or children, at most.
const NODE_HEAD_BYTES: usize = 4;

/// Puts elements into groups of at most `room` bytes, or of one element.
fn groups<T>(elements: Vec<T>, room: usize, bytes: impl Fn(&T) -> usize) -> Vec<Vec<T>> {
    let (mut groups, mut total) = (Vec::new(), 0);
    for element in elements {
        let size = bytes(&element);
        match groups.last_mut() {
            Some(group) if total + size + NODE_HEAD_BYTES <= room => {
                total += size;
                Vec::push(group, element);
            }
            _ => {
                total = size;
                groups.push(vec![element]);
            }
        }
    }
    groups
}

/// Returns the shortest key that is above one key, and not above the next one.
fn between(left: &[u8], right: &[u8]) -> Vec<u8> {
    let same = left.iter().zip(right).take_while(|(a, b)| a == b).count();
    right[..right.len().min(same + 1)].to_vec()
}

/// Returns the number of records of a page.
fn parts_of(bytes: usize) -> u8 {
    u8::try_from(bytes.div_ceil(PART_BYTES)).unwrap_or(u8::MAX)
}

fn number_bytes(number: usize) -> usize {
    (number.max(1).ilog2() / 7 + 1) as usize
}

fn element_bytes(element: &Element) -> usize {
    let (key, value) = (element.key.len(), element.value.len());
    number_bytes(key) + key + number_bytes(value) + value
}

fn child_bytes(child: &Child) -> usize {
    let low = child.low.len();
    number_bytes(low) + low + number_bytes(child.page as usize) + number_bytes(child.count as usize) + 1
}

fn children_bytes(children: &[Child]) -> usize {
    number_bytes(children.len()) + children.iter().map(child_bytes).sum::<usize>()
}

fn put(mut number: u64, out: &mut Vec<u8>) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

fn put_bytes(bytes: &[u8], out: &mut Vec<u8>) {
    put(bytes.len() as u64, out);
    out.extend_from_slice(bytes);
}

fn put_children(children: &[Child], out: &mut Vec<u8>) {
    put(children.len() as u64, out);
    for child in children {
        put_bytes(&child.low, out);
        put(child.page, out);
        put(child.count, out);
        out.push(child.parts);
    }
}

fn get(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

fn get_bytes(bytes: &mut &[u8]) -> Option<Vec<u8>> {
    let length = usize::try_from(get(bytes)?).ok()?;
    let (found, rest) = bytes.split_at_checked(length)?;
    *bytes = rest;
    Some(found.to_vec())
}

fn get_children(bytes: &mut &[u8]) -> Option<Vec<Child>> {
    let number = usize::try_from(get(bytes)?).ok()?;
    let mut children = Vec::with_capacity(number.min(bytes.len()));
    let mut total = 0_u64;
    for _ in 0..number {
        let (low, page, count) = (get_bytes(bytes)?, get(bytes)?, get(bytes)?);
        let (parts, rest) = bytes.split_first()?;
        *bytes = rest;
        total = total.checked_add(count).filter(|total| i64::try_from(*total).is_ok())?;
        children.push(Child { low, page, count, parts: *parts });
    }
    Some(children)
}
