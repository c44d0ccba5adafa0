//! The conformance suite: tests that any backend can run, with one function for each row of the
//! contract of a round.
//!
//! A backend implements [`Bed`], which says how it is tested.
//! [`conformance_suite!`](crate::conformance_suite) makes one `#[test]` for each row, so that the
//! test's name tells which row failed:
//!
//! ```ignore
//! remora_fabric::conformance_suite!(ShmBed);
//! ```
//!
//! Rows assert that what the contract forbids does not happen. The contract also allows things that
//! need not happen: verbs that are not ordered may change places. That they do is asserted only of
//! a backend which says that it [`reorders`](Bed::reorders). There the other rows are then known to
//! test something.

mod calls;
mod failure;
mod memory;
mod order;
mod rounds;

use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::address::{Address, NodeId, RegionId};
use crate::executor::Worker;
use crate::ids::ClientId;
use crate::lane::Lane;
use crate::round::{Completed, Round};
use crate::transport::{Fabric, Host};

pub use calls::*;
pub use failure::*;
pub use memory::*;
pub use order::*;
pub use rounds::*;

/// How the suite plays several clients of a backend.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Clients {
    /// Each client is a thread with a worker of its own.
    Threads,
    /// Each client is an endpoint of one worker: the backend interleaves them.
    Interleaved,
}

/// A backend under test. The rows take it as `&dyn Bed`, so the library contains all their code,
/// and the test program of one more backend does not compile them again.
pub trait Bed: Sync {
    /// Returns a new fabric. `nodes` has the sizes of the regions of each node, in bytes. `seed` is
    /// for backends that have a scheduler.
    fn fabric(&self, nodes: &[Vec<usize>], seed: u64) -> Box<dyn Host>;

    /// Returns how several clients are played.
    fn clients(&self) -> Clients;

    /// Returns the number of new fabrics for each row.
    fn runs(&self) -> u64;

    /// Returns the number of turns that each client takes on one fabric.
    fn turns(&self) -> u64;

    /// Whether the backend must show, over all runs, everything that the contract allows.
    fn reorders(&self) -> bool;

    /// Returns a new fabric, as [`Bed::fabric`] does, that revokes `client` after `steps` more
    /// steps, in the middle of what that client does. Returns `None` if the backend has no such
    /// steps.
    fn fabric_that_revokes(
        &self,
        nodes: &[Vec<usize>],
        seed: u64,
        client: ClientId,
        steps: u64,
    ) -> Option<Box<dyn Host>> {
        let _ = (nodes, seed, client, steps);
        None
    }
}

/// Makes one `#[test]` for each row of the contract. The argument is a constant expression whose
/// value implements [`Bed`](crate::conformance::Bed). With `without_node_cpus` before it, leaves
/// out the rows that need CPUs of memory nodes
/// ([`Capabilities::node_cpu`](crate::Capabilities::node_cpu)).
#[macro_export]
macro_rules! conformance_suite {
    ($bed:expr) => {
        $crate::conformance_suite! { without_node_cpus $bed }
        $crate::conformance_suite! { @rows $bed;
            handles_of_another_round_are_caught
            a_node_that_forgets_begins_anew
            a_service_runs_until_its_handle_is_dropped
            a_call_is_answered_once
            calls_are_served_in_order
            calls_of_several_clients_are_served
            a_call_wakes_a_node_that_has_gone_to_sleep
            a_call_that_cannot_be_answered_fails
            a_large_call_arrives_whole
        }
    };
    (without_node_cpus $bed:expr) => {
        $crate::conformance_suite! { @rows $bed;
            write_precedes_read
            write_precedes_write
            write_precedes_compare_swap
            write_precedes_fetch_add
            compare_swap_precedes_read
            fetch_add_precedes_read
            compare_swap_precedes_compare_swap
            compare_swap_precedes_fetch_add
            fetch_add_precedes_compare_swap
            fetch_add_precedes_fetch_add
            a_background_release_precedes_the_next_lock
            lanes_of_one_endpoint_are_ordered
            reads_are_unordered_and_a_fence_orders_them
            read_and_write_are_unordered_and_a_fence_orders_them
            read_and_compare_swap_are_unordered_and_a_fence_orders_them
            read_and_fetch_add_are_unordered_and_a_fence_orders_them
            compare_swap_and_write_are_unordered_and_a_fence_orders_them
            fetch_add_and_write_are_unordered_and_a_fence_orders_them
            nodes_are_unordered_and_a_fence_orders_them
            stores_precede_loads_in_one_round
            stores_precede_loads_of_the_next_round
            atomics_precede_loads_in_one_round
            what_is_fenced_precedes_later_rounds
            words_are_atomic
            a_write_becomes_visible_in_ascending_order
            a_record_of_one_line_is_read_whole
            a_record_of_several_lines_is_read_whole
            part_of_a_line_is_read_whole
            part_of_a_later_line_is_read_whole
            one_compare_swap_wins
            fetch_adds_sum_up
            a_lock_excludes
            an_access_out_of_bounds_is_refused
            an_access_to_nowhere_is_refused
            an_unaligned_access_is_refused_and_nothing_is_sent
            a_full_round_is_refused_and_nothing_is_sent
            a_revoked_client_is_refused
            nothing_lands_after_a_revocation
            a_round_cut_by_a_revocation_fails_and_may_have_run
            a_node_that_is_down_is_named_and_others_work
            nothing_behind_a_fence_runs_after_a_failure
            a_background_failure_is_reported
            a_dropped_round_leaves_no_trace_in_others
            a_continuation_follows_its_round
            a_continuation_is_filled_in
            a_listener_hears_of_its_round
            a_continuation_of_a_failed_round_is_not_sent
            costs_are_exact
            a_flush_costs_no_round_trip
            a_sleep_is_pending_at_least_once
            wakers_of_other_threads_wake_a_lane
            a_yielding_endpoint_lets_others_run
            a_lane_that_yields_lets_others_run
            a_worker_runs_as_many_lanes_as_it_has_bits
        }
    };
    (@rows $bed:expr; $($row:ident)*) => {
        $(
            #[test]
            fn $row() {
                let _alone = $crate::conformance::alone(&$bed);
                $crate::conformance::$row(&$bed);
            }
        )*
    };
}

/// Holds back the other rows of a bed whose clients are threads. Races need threads that run side
/// by side, and threads that share a core take turns.
pub fn alone(bed: &dyn Bed) -> Option<MutexGuard<'static, ()>> {
    static ROW: Mutex<()> = Mutex::new(());
    match bed.clients() {
        Clients::Threads => Some(ROW.lock().unwrap_or_else(PoisonError::into_inner)),
        Clients::Interleaved => None,
    }
}

/// Returns the address of a word in a node's first region.
fn word(node: u16, index: usize) -> Address {
    Address { node: NodeId(node), region: RegionId(0), offset: 8 * index as u64 }
}

/// A client's coroutine, which owns its lane.
type Body<'a, T> = Box<dyn FnOnce(Lane) -> Pin<Box<dyn Future<Output = T> + 'a>> + Send + 'a>;

/// Makes a client from an async closure.
fn client<'a, T, F: Future<Output = T> + 'a>(body: impl FnOnce(Lane) -> F + Send + 'a) -> Body<'a, T> {
    Box::new(move |lane| Box::pin(body(lane)))
}

/// Plays the clients 1, 2, ... at the same time. Returns their results in that order.
fn play<T: Send>(bed: &dyn Bed, fabric: &dyn Fabric, seed: u64, bodies: Vec<Body<'_, T>>) -> Vec<T> {
    match bed.clients() {
        Clients::Interleaved => {
            let worker = Worker::new();
            let tasks: Vec<_> = (1..)
                .zip(bodies)
                .map(|(number, body)| {
                    let lane = lane_of(&worker, fabric, number, seed);
                    (lane.id(), body(lane))
                })
                .collect();
            worker.run(tasks)
        }
        Clients::Threads => {
            let waiting = &AtomicUsize::new(bodies.len());
            std::thread::scope(|scope| {
                let handles: Vec<_> = (1..)
                    .zip(bodies)
                    .map(|(number, body)| {
                        scope.spawn(move || {
                            let worker = Worker::new();
                            let lane = lane_of(&worker, fabric, number, seed);
                            // Start all threads at the same moment, which a barrier does not: it
                            // wakes them one by one, and some races last only a millisecond.
                            waiting.fetch_sub(1, Ordering::AcqRel);
                            while waiting.load(Ordering::Acquire) > 0 {
                                std::thread::yield_now();
                            }
                            let mut results = worker.run([(lane.id(), body(lane))]);
                            results.pop().expect("a client that has run has a result")
                        })
                    })
                    .collect();
                handles
                    .into_iter()
                    .map(|handle| handle.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
                    .collect()
            })
        }
    }
}

fn lane_of(worker: &Worker, fabric: &dyn Fabric, number: u32, seed: u64) -> Lane {
    let endpoint = worker.connect(fabric, ClientId(number)).expect("a connection");
    worker.lane(&endpoint, seed ^ u64::from(number) << 32).expect("a worker has lanes enough for a test")
}

/// The clients 1, 2, ... on one thread, which take their turns one after the other.
struct Stage {
    worker: Worker,
    lanes: Vec<Lane>,
}

impl Stage {
    fn new(fabric: &dyn Fabric, clients: u32, seed: u64) -> Stage {
        let worker = Worker::new();
        let lanes = (1..=clients).map(|number| lane_of(&worker, fabric, number, seed)).collect();
        Stage { worker, lanes }
    }

    /// Runs the turn of client `number`.
    fn on<'s, T>(&'s self, number: usize, body: impl AsyncFnOnce(&'s Lane) -> T) -> T {
        let lane = &self.lanes[number - 1];
        let mut results = self.worker.run([(lane.id(), body(lane))]);
        results.pop().expect("a client that has run has a result")
    }
}

/// Executes a round that must not fail.
async fn run<'l>(lane: &'l Lane, round: Round<'l>) -> Completed<'l> {
    lane.execute(round).await.expect("a round to healthy nodes")
}

/// Reads words in a round of its own.
async fn peek(lane: &Lane, at: Address, words: usize) -> Vec<u64> {
    let mut round = lane.round();
    let handle = round.read(at, 8 * words);
    run(lane, round).await.words(handle).to_vec()
}

/// Writes words in a round of its own.
async fn poke(lane: &Lane, at: Address, words: &[u64]) {
    let mut round = lane.round();
    round.write_words(at, words);
    run(lane, round).await;
}

/// Waits until the lane has no background round in flight. Fails after a very long time.
async fn settle(lane: &Lane) {
    // Looks often at first, then for seconds: a server's thread may be kept from running for that
    // long.
    for pause in std::iter::repeat_n(100, 10_000).chain(std::iter::repeat_n(100_000, 100_000)) {
        if lane.background() == 0 {
            return;
        }
        lane.sleep(pause).await;
    }
    panic!("{} background rounds have not come back", lane.background());
}
