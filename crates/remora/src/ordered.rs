//! Ordered tables: a B-link tree whose nodes are records.
//!
//! ```text
//! table NAME/leaves    id u64 -> node of level 0: 992 bytes or more, see `remora_index::btree`
//! table NAME/inner     id u64 -> node of another level
//! table NAME/values    key -> value, of values that are too long for leaves: a table of bytes
//!
//! insert    the leaf := with another entry      if it is full: the leaf and its parent, and a new
//!                                               leaf
//! remove    the leaf := without it              if it is empty then: its neighbour and its parent,
//!                                               and a leaf less
//! scan      the leaves of the range, together
//! ```
//!
//! All of it is parts of the transaction that does it, over ordinary tables. So splits and merges
//! are replicated, recovered and serializable with whatever else it does, under every protocol, and
//! a client that dies within one leaves all of it or nothing.
//!
//! # Invariants
//!
//! 1. **In every committed state the leaves that are there partition the keys**, by their fences.
//!    So a leaf that is validated, and whose fences have a key between them, is *the* leaf of that
//!    key, by whatever way it was found; if it has no entry for the key, the table has none.
//!    A scan reads leaves whose fences follow one upon the other. That is all the protection from
//!    phantoms that there is: an insert or a remove changes the version of its leaf.
//! 2. Hence **inner nodes are hints**, and so is what clients remember of them
//!    (`ordered/directory.rs`). Nobody need validate them but who changes them. (What a transaction
//!    has read it validates; so it reads them only if nothing is remembered.)
//! 3. **A root keeps its id for ever**: 0, if it is the only one (`ordered/partitions.rs` has the
//!    others). When it is split, its content goes to two new nodes. It is never a leaf. Ids of
//!    other nodes are drawn from those of the transactions that insert them; should one come again
//!    while the first is there, its transaction aborts. By 1, it would do no harm if it came again
//!    later.
//! 4. **An inner node has a child.** A leaf that becomes empty is merged with a neighbour, and so
//!    is each ancestor that has no other child, below the first that has one. So a leaf is empty
//!    only if it is the only one, and nothing stays of ranges that are not used any more. (A leaf
//!    with few entries stays as it is, and a tree keeps its height. An empty slotted leaf also
//!    stays while neither neighbour has room for a longer fence.)
//!
//! 5. **An operation fetches all that it needs before it changes anything**, and awaits nothing
//!    from its first change on. So its future can be dropped at any await: the transaction then
//!    holds none of it, or all of it.
//!
//! # Round trips
//!
//! With the leaf and its location known: [`Ordered::get`] takes one, as does [`Ordered::scan`] of
//! up to 60 leaves of 992 bytes; each leaf is validated as one record is. If nothing is known, it
//! is one for each level, or one to ask ([`Design`]). [`Ordered::insert`] and [`Ordered::remove`]
//! are updates of one record, but for splits and merges. A split takes a round trip for the new
//! leaf and the parent, if that is known and has room; otherwise, and for merges, the path from the
//! root is read, and then all that is new or goes together. A split is seen by others as a leaf
//! that has lost the upper half of its keys: they follow its link, and remember it.
//!
//! Where keys come first ([`OrderedOptions::keys_first`]), a lookup takes two: one for the head of
//! the leaf, and one for the cell of the value. Both are of one state of the leaf
//! (`remora_record::record`, "Parts of a value"), and by 1 the head alone says that a key is not
//! there. A lookup by a call that finds the leaf brings the key's value, and no leaf.
//!
//! A change of one key by a call ([`Ordered::by_call`]) takes two (`remora_txn`, `edit.rs`): one
//! that locks the leaf, and one that logs.
//!
//! Values that are out of line are records by their keys, inserted and deleted together with the
//! entries of leaves. So a lookup of one key reads or changes its value alone, and needs no leaf. A
//! scan takes a round trip more, for the values of the keys that it has found.
//!
//! # Bytes
//!
//! The tree works on bytes. [`Ordered`] encodes its keys and values, each of which have one length.
//! [`DynOrdered`] takes bytes, and pads values of different lengths where they lie in leaves. It
//! also pads keys of different lengths, as long as a record can have them as its key. Nodes of
//! longer ones are slotted: they hold each key with its length. Values that are out of line, and
//! have different lengths, can have several records: a scan takes another round trip for them, as a
//! lookup does.
//!
//! # Bytes of a transaction
//!
//! A transaction logs at most 32 KiB. A split writes two nodes of each level that is split, and one
//! more above them. So a split of the root, of an inner node and of a leaf writes seven nodes: 18.5
//! KiB if keys have up to 512 bytes beside short values.
//!
//! # Files
//!
//! | file | what it is for |
//! | --- | --- |
//! | `keys` | keys as bytes, their neighbours, and ranges; bytes of different lengths |
//! | `parts` | the tables that an ordered table consists of |
//! | `options` | how to create an ordered table |
//! | `partitions` | partitions by ranges of keys |
//! | `directory` | what a client remembers of where leaves are |
//! | `load` | builds a tree from rows in order, and checks one |
//! | `tree` | a tree of bytes, and its nodes as a transaction sees them |
//! | `finding` | from a key to its leaf |
//! | `changing` | entries that are added, splits and merges |
//! | `operations` | lookups and changes of one key |
//! | `scanning` | ranges |
//! | `creation`, `inspection` | whole tables, without transactions |
//! | `typed` | [`Ordered`]: keys and values that have types |
//! | `dynamic` | [`DynOrdered`]: keys and values that are bytes |

mod changing;
mod creation;
mod directory;
mod dynamic;
mod finding;
mod inspection;
mod keys;
mod load;
mod operations;
mod options;
mod partitions;
mod parts;
mod scanning;
#[cfg(test)]
mod tests;
mod tree;
mod typed;

pub use dynamic::DynOrdered;
pub use load::TreeInspection;
pub use options::{Design, OrderedOptions};
pub use typed::Ordered;
