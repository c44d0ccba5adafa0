//! The protocols: one folder each, its rounds in order, and one entry each in the list below.
//!
//! A folder implements [`Steps`] for the type of its parameters. One value of that type is one
//! protocol: the presets of a family differ in parameters alone. Everything else takes what it must
//! know of a protocol from its [`ProtocolSpec`], and the list of all protocols from
//! [`Protocol::ALL`]. `docs/how-to/add-a-protocol.md` says how to add one.

pub(crate) mod lookup;
mod redo;
pub(crate) mod spec;

use std::fmt;

use remora_fabric::{CallHandle, Execute, NodeId, ReadHandle};
use remora_node::{Discipline, IndexKind};

pub use ford::Ford;
pub use no_wait::NoWait;
pub use occ::{Locks, Primitives};
pub use spec::{FirstRead, Primitive, ProtocolSpec, Validation};
pub use unsynchronized::Unsynchronized;

use crate::error::Stop;
use crate::event::Outcome;
use crate::tx::Tx;

/// The steps of a protocol. A transaction takes them in this order:
///
/// 1. `execute`, each time its program awaits the records that it has named, and once before its
///    end.
/// 2. `commit`, if its program wants what it wrote; or `validate`, if it only gives up what it
///    meant to write, and its reads must belong together.
/// 3. `leave`, in place of what follows the log, if the program drops the transaction while the
///    answer to its log round is under way ([`Tx::logging`]).
///
/// A step that fails returns why. The caller then releases every lock that the sets say the
/// transaction has or may have ([`Tx::release`]). The futures of steps may be dropped at every
/// await, so before each of them the sets must tell what has been asked for.
pub(crate) trait Steps: Copy + 'static {
    /// Named members of the family that only measurements use.
    const STUDIES: &'static [Self] = &[];

    /// Returns what the rest of Remora must know of this protocol.
    fn spec(self) -> ProtocolSpec;

    /// Brings every record that was named and is not here yet.
    async fn execute(self, tx: &mut Tx<'_>) -> Result<(), Stop>;

    /// Commits the write set, or validates the reads of a transaction that has none.
    async fn commit(self, tx: &mut Tx<'_>) -> Result<(), Stop>;

    /// Validates that all reads belong together, for a transaction that writes nothing after all.
    async fn validate(self, tx: &mut Tx<'_>) -> Result<(), Stop>;

    /// Leaves what must follow the log round to the background.
    fn leave<'s>(self, tx: &mut Tx<'s>, log: Execute<'s>);
}

/// Makes [`Protocol`] from the list of families: `folder: Variant(parameters) [presets]`. Presets
/// are the protocols that users choose by name. Each preset is a constant of [`Protocol`], which
/// its folder defines.
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

        /// Calls a macro with the constants of [`Protocol`] for all protocols that promise
        /// transactions: `each_protocol!(then a b)` is `then! { [FARM FASST ..] a b }`. It lets
        /// tests declare one function for each protocol.
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

            /// Every protocol with a name that only measurements use: baselines of published
            /// comparisons, as they were there.
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
    /// `drtm-h`.
    occ: Occ(Primitives) [FARM, FASST, DRTM_R, DRTM_H],
    /// One-sided, every replica updated in place, commit in two round trips: `ford` and its
    /// variants.
    ford: Ford(Ford) [FORD, FORD_LEAN, FORD_LOCAL, FORD_GLOBAL],
    /// Two-phase locking, shared and exclusive, that aborts where it would have to wait.
    no_wait: NoWait(NoWait) [NO_WAIT],
    /// Bare rounds, **no transactions**: the bound that the protocols are measured against.
    unsynchronized: Unsynchronized(Unsynchronized) [] without_transactions [UNSYNCHRONIZED],
}

impl Default for Protocol {
    /// DrTM+R.
    fn default() -> Protocol {
        Protocol::DRTM_R
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Protocol {
    /// Returns the protocol's name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.spec().name
    }

    /// Returns the protocol of a name.
    #[must_use]
    pub fn named(name: &str) -> Option<Protocol> {
        Protocol::ALL.into_iter().chain(Protocol::STUDIES).find(|protocol| protocol.name() == name)
    }

    /// Returns the discipline of the tables that it creates.
    #[must_use]
    pub fn discipline(self) -> Discipline {
        self.spec().discipline
    }

    /// Returns the index of the tables that it creates.
    #[must_use]
    pub fn index(self) -> IndexKind {
        self.spec().index
    }

    /// Returns what validates records that a transaction only reads.
    #[must_use]
    pub fn validation(self) -> Validation {
        self.spec().validation
    }

    /// Whether it needs
    /// [`Capabilities::atomic_writes`](remora_fabric::Capabilities::atomic_writes).
    #[must_use]
    pub fn needs_atomic_writes(self) -> bool {
        self.spec().needs_atomic_writes
    }

    /// Whether its transactions are strictly serializable.
    #[must_use]
    pub fn is_serializable(self) -> bool {
        self.spec().is_serializable
    }

    /// Whether it may run on tables of a discipline.
    #[must_use]
    pub fn accepts(self, discipline: Discipline) -> bool {
        let spec = self.spec();
        discipline == spec.discipline || spec.accepts.contains(&discipline)
    }
}

/// How the validation round under way looks again at something that was read.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Check {
    /// By a READ of a record's lock and version.
    Read { item: usize, read: ReadHandle },
    /// By a call that returns a record's lock and version.
    Call { item: usize, call: CallHandle },
    /// By a READ of a bucket in which a key was not found, and whose words then lie in the arena.
    Bucket { item: usize, chain: usize, read: ReadHandle },
    /// By a call that looks for a key that the primary's CPU did not find.
    Find { call: CallHandle },
}

/// The nodes of a set of bits.
fn nodes(mut set: u64) -> impl Iterator<Item = NodeId> {
    std::iter::from_fn(move || {
        let node = (set != 0).then(|| NodeId(set.trailing_zeros() as u16));
        set &= set.wrapping_sub(1);
        node
    })
}

/// A transaction that has committed and waits for the acknowledgement of what comes after. If it is
/// dropped meanwhile, its outcome is told as committed.
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
