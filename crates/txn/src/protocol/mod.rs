//! The protocols. Each has a folder, which has its rounds in order, and an entry in the list in
//! this file.
//!
//! A folder implements [`Steps`] for the type of its parameters. One value of that type is one
//! protocol, so the presets of a family differ only in parameters. The rest of Remora reads what it
//! must know of a protocol from its [`ProtocolSpec`], and the list of all protocols from
//! [`Protocol::ALL`]. `docs/how-to/add-a-protocol.md` says how to add one.

mod clocks;
mod long_frame;
pub(crate) mod lookup;
mod redo;
mod refused;
pub(crate) mod spec;

use std::fmt;

use remora_fabric::{CallHandle, Execute, Lane, NodeId, ReadHandle};
use remora_node::{Discipline, IndexKind};
use remora_record::{RepairableLock, TransactionId};

pub use dst::Dst;
pub use ford::Ford;
pub use native::Native;
pub use no_wait::NoWait;
pub use occ::{Locks, Primitives};
pub use rtx::{Outcomes, Reclaimed, Rtx, reclaim};
pub(crate) use rtx::{Repairs, release_rounds, rest, take_mark_free};
pub use spec::{FirstRead, Primitive, ProtocolSpec, Validation};
pub use unsynchronized::Unsynchronized;

use crate::error::{Abort, Stop};
use crate::event::Outcome;
use crate::limits::{READ_PAUSE_NS, SNAPSHOT_READS};
use crate::recovery::{self, Verdict};
use crate::state::State;
use crate::tx::Tx;

/// The steps of a protocol. A transaction takes them in this order:
///
/// 1. `execute`, each time the program awaits the records that it has named, and once before the
///    transaction ends.
/// 2. `commit`, if the program commits. Or `validate`, if the program gives up what it meant to
///    write, and its reads must still belong together.
/// 3. `leave`, in place of the steps that follow the log, if the program drops the transaction
///    while it awaits the answer to its log round ([`Tx::logging`]).
///
/// A step that fails returns why. The caller then releases every lock that the transaction has or
/// may have, as its sets say ([`Tx::release`]). The future of a step may be dropped at every await,
/// so before each await the sets must tell what has been asked for.
pub(crate) trait Steps: Copy + 'static {
    /// Members of the family that have a name, and that only measurements use.
    const STUDIES: &'static [Self] = &[];

    /// Returns what the rest of Remora must know of this protocol.
    fn spec(self) -> ProtocolSpec;

    /// Brings every record that was named and has not been fetched yet.
    async fn execute(self, tx: &mut Tx<'_>) -> Result<(), Stop>;

    /// Commits the write set, or validates the reads of a transaction that has none.
    async fn commit(self, tx: &mut Tx<'_>) -> Result<(), Stop>;

    /// Validates that all reads belong together, for a transaction that gives up what it meant to
    /// write.
    async fn validate(self, tx: &mut Tx<'_>) -> Result<(), Stop>;

    /// Leaves the steps that must follow the log round to the background.
    fn leave<'s>(self, tx: &mut Tx<'s>, log: Execute<'s>);
}

/// Makes [`Protocol`] from the list of families. An entry is `folder: Variant(parameters)
/// [presets]`. Presets are the protocols that users choose by name. Each preset is a constant of
/// [`Protocol`], which the folder defines.
macro_rules! protocols {
    ($dollar:tt $(
        $(#[$doc:meta])+
        $folder:ident: $Family:ident($Parameters:ty) [$($PRESET:ident),*]
            $(without_transactions [$($BARE:ident),*])?,
    )+) => {
        $(mod $folder;)+

        /// How transactions are made serializable and durable: a family, and its parameters.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub enum Protocol { $($(#[$doc])+ $Family($Parameters),)+ }

        /// Calls a macro with the names of the constants of [`Protocol`], for all protocols that
        /// promise transactions: `each_protocol!(then a b)` is `then! { [FARM FASST ..] a b }`.
        /// With it, tests declare one function for each protocol.
        #[macro_export]
        macro_rules! each_protocol {
            ($dollar then:ident $dollar($dollar with:tt)*) => {
                $dollar then! { [$($($PRESET)*)+] $dollar($dollar with)* }
            };
        }

        impl Protocol {
            /// Every protocol that users choose by name.
            pub const ALL: [Protocol; [$($(stringify!($PRESET),)* $($(stringify!($BARE),)*)?)+].len()] =
                [$($(Protocol::$PRESET,)* $($(Protocol::$BARE,)*)?)+];

            /// Every protocol with a name that only measurements use. These are the baselines of
            /// published comparisons, as they were in the publications.
            pub const STUDIES: [Protocol; 0 $(+ <$Parameters as Steps>::STUDIES.len())+] = {
                let mut all = [Protocol::DRTM_R; _];
                let mut count = 0;
                $(
                    let mut member = 0;
                    while member < <$Parameters as Steps>::STUDIES.len() {
                        all[count] = Protocol::$Family(<$Parameters as Steps>::STUDIES[member]);
                        (count, member) = (count + 1, member + 1);
                    }
                )+
                all
            };

            /// Returns what the rest of Remora must know of this protocol.
            #[must_use]
            pub fn spec(self) -> ProtocolSpec {
                match self { $(Protocol::$Family(steps) => steps.spec(),)+ }
            }

            pub(crate) async fn execute(self, tx: &mut Tx<'_>) -> Result<(), Stop> {
                match self { $(Protocol::$Family(steps) => steps.execute(tx).await,)+ }
            }

            pub(crate) async fn commit(self, tx: &mut Tx<'_>) -> Result<(), Stop> {
                match self { $(Protocol::$Family(steps) => steps.commit(tx).await,)+ }
            }

            pub(crate) async fn validate(self, tx: &mut Tx<'_>) -> Result<(), Stop> {
                match self { $(Protocol::$Family(steps) => steps.validate(tx).await,)+ }
            }

            pub(crate) fn leave<'s>(self, tx: &mut Tx<'s>, log: Execute<'s>) {
                match self { $(Protocol::$Family(steps) => steps.leave(tx, log),)+ }
            }
        }
    };
}

protocols! {
    $
    /// Optimistic concurrency control with primary-backup replication: `farm`, `fasst`, `drtm-r`,
    /// `drtm-h`; and `drtm-r-clocks`, with snapshots.
    occ: Occ(Primitives) [FARM, FASST, DRTM_R, DRTM_H, DRTM_R_CLOCKS],
    /// FORD: one-sided transactions that update every replica in place and commit in two round
    /// trips: `ford` and its variants.
    ford: Ford(Ford) [FORD, FORD_LEAN, FORD_LOCAL, FORD_GLOBAL, REMORA],
    /// Optimistic concurrency control with older versions of the records, and a time for each
    /// commit: `dst`, `gts` and `vts`; and `dst-2pl`, two-phase locking with such times.
    /// `rc` reads and writes committed versions, but its transactions are **not serializable**.
    dst: Dst(Dst) [DST, DST_2PL, GTS, VTS] without_transactions [RC],
    /// Two-phase locking with shared and exclusive locks, which aborts where it would have to wait.
    no_wait: NoWait(NoWait) [NO_WAIT],
    /// Repairable transactions, which any client finishes or undoes for another one. One copy.
    rtx: Rtx(Rtx) [RTX],
    /// Locks without logs, which are **not atomic** if a client dies: a bound for `rtx`.
    native: Native(Native) [],
    /// Bare rounds, which are **no transactions**. They are the bound that the protocols are
    /// measured against.
    unsynchronized: Unsynchronized(Unsynchronized) [] without_transactions [UNSYNCHRONIZED],
}

impl Default for Protocol {
    /// Returns [`Protocol::FORD`].
    fn default() -> Protocol {
        Protocol::FORD
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Protocol {
    /// Returns the largest sequence number of a transaction id: lock words have room for no larger
    /// one.
    #[must_use]
    pub fn sequence_max(self) -> u64 {
        if self.spec().discipline.is_repairable() { RepairableLock::SEQUENCE_MAX } else { TransactionId::SEQUENCE_MAX }
    }

    /// Returns the protocol's name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.spec().name
    }

    /// The protocols whose steps differ most, for tests that have no time for all of them. Every
    /// other one that promises serializable transactions shares most of its code with one of these.
    pub const DISTINCT: [Protocol; 8] = [
        Protocol::FASST,
        Protocol::DRTM_R,
        Protocol::DRTM_R_CLOCKS,
        Protocol::FORD,
        Protocol::REMORA,
        Protocol::DST,
        Protocol::NO_WAIT,
        Protocol::RTX,
    ];

    /// Returns the protocol with this name on the command line, if there is one.
    #[must_use]
    pub fn named(name: &str) -> Option<Protocol> {
        Protocol::ALL.into_iter().chain(Protocol::STUDIES).find(|protocol| protocol.name() == name)
    }

    /// Returns the discipline of the tables that this protocol creates.
    #[must_use]
    pub fn discipline(self) -> Discipline {
        self.spec().discipline
    }

    /// Returns the kind of index of the tables that this protocol creates.
    #[must_use]
    pub fn index(self) -> IndexKind {
        self.spec().index
    }

    /// Returns what validates records that a transaction only reads.
    #[must_use]
    pub fn validation(self) -> Validation {
        self.spec().validation
    }

    /// Returns whether this protocol needs
    /// [`Capabilities::atomic_writes`](remora_fabric::Capabilities::atomic_writes).
    #[must_use]
    pub fn needs_atomic_writes(self) -> bool {
        self.spec().needs_atomic_writes
    }

    /// Returns whether this protocol needs CPUs of memory nodes
    /// ([`ProtocolSpec::needs_node_cpu`]).
    #[must_use]
    pub fn needs_node_cpu(self) -> bool {
        self.spec().needs_node_cpu()
    }

    /// Returns whether the transactions of this protocol are strictly serializable.
    #[must_use]
    pub fn is_serializable(self) -> bool {
        self.spec().is_serializable
    }

    /// Returns whether transactions of this protocol can read snapshots.
    #[must_use]
    pub fn has_snapshots(self) -> bool {
        self.discipline().has_times()
    }

    /// Returns whether transactions of this protocol draw the times of their commits from landing
    /// clocks.
    #[must_use]
    pub fn has_clocks(self) -> bool {
        self.discipline().has_clocks()
    }

    /// Returns whether snapshots of this protocol can stay open ([`Snapshot::At`]).
    ///
    /// [`Snapshot::At`]: crate::Snapshot::At
    #[must_use]
    pub fn has_open_snapshots(self) -> bool {
        self.discipline().is_timed()
    }

    /// Returns whether snapshots may claim what is known of clocks (`landing.rs`, invariant 1).
    pub(crate) fn trusts_known_clocks(self) -> bool {
        match self {
            Protocol::Ford(ford) => ford.timed && ford.known_clocks,
            Protocol::Occ(primitives) => primitives.locks == Locks::NicTimed { known_clocks: true },
            _ => false,
        }
    }

    /// Returns whether this protocol may run on tables of a discipline.
    #[must_use]
    pub fn accepts(self, discipline: Discipline) -> bool {
        let spec = self.spec();
        discipline == spec.discipline || spec.accepts.contains(&discipline)
    }
}

/// Returns what is known of a transaction of a client that is alive. If it is one of this session,
/// `ended` says that nothing of it is on its way.
pub(crate) async fn look_up(lane: &Lane, state: &State, id: TransactionId, ended: bool) -> Result<Verdict, Stop> {
    if state.spec.discipline.is_repairable() {
        return rtx::look_up(lane, state, id).await;
    }
    Ok(recovery::look_up(lane, state.nodes, id, state.spec.discipline.is_in_place(), ended).await?)
}

/// How the current validation round looks again at something that was read.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Check {
    /// By a READ of a record's lock and version.
    Read { item: usize, read: ReadHandle },
    /// By a call that returns a record's lock and version.
    Call { item: usize, call: CallHandle },
    /// By a READ of a bucket in which a key was not found. The arena has the bucket's words as they
    /// were then.
    Bucket { item: usize, chain: usize, read: ReadHandle },
    /// By a call that looks for a key that the primary's CPU did not find.
    Find { item: usize, call: CallHandle },
}

/// Returns the nodes of a set that has one bit for each node.
fn nodes(mut set: u64) -> impl Iterator<Item = NodeId> {
    std::iter::from_fn(move || {
        let node = (set != 0).then(|| NodeId(set.trailing_zeros() as u16));
        set &= set.wrapping_sub(1);
        node
    })
}

/// How often a snapshot has read records again.
#[derive(Default)]
struct Rereads(u32);

impl Rereads {
    /// Pauses if a record cannot be used now, and is to be read again, each time twice as long.
    /// Fails if it was read too often.
    async fn pause(&mut self, tx: &Tx<'_>, unstable: Option<Abort>) -> Result<(), Stop> {
        let Some(why) = unstable else { return Ok(()) };
        self.0 += 1;
        if self.0 == SNAPSHOT_READS {
            return Err(why.into());
        }
        tx.lane.sleep(READ_PAUSE_NS << (self.0 - 1)).await;
        Ok(())
    }
}

/// A transaction that has committed, and waits for the acknowledgement of the rounds after the
/// commit. If it is dropped meanwhile, observers learn that it has committed.
struct Acknowledged<'t, 's> {
    tx: &'t mut Tx<'s>,
    awaited: bool,
}

impl<'t, 's> Acknowledged<'t, 's> {
    fn of(tx: &'t mut Tx<'s>) -> Acknowledged<'t, 's> {
        Acknowledged { tx, awaited: false }
    }

    fn tx(&mut self) -> &mut Tx<'s> {
        self.tx
    }

    fn done(mut self) {
        self.awaited = true;
    }
}

impl Drop for Acknowledged<'_, '_> {
    fn drop(&mut self) {
        if !self.awaited {
            self.tx.end(Outcome::Committed);
        }
    }
}
