//! The times of `gts`: an oracle gives them. This is the client's end; the memory node's end is
//! `oracle.rs` of this crate.
//!
//! The oracle counts a commit as outstanding from its first request on (NEXT) until the client says
//! that it is over (DONE, `Tx::over_at_oracle`). The client notes that before it asks
//! (`State::owed`), so a transaction whose future is dropped says so as well. The coroutines of a
//! client share requests (`oracle/requests.rs`), which see to it that NEXT comes before DONE.

use super::time::known;
use crate::error::{Abort, Stop};
use crate::oracle::Question;
use crate::oracle::requests::{Given, Wish};
use crate::rpc::Code;
use crate::tx::Tx;

/// Returns the time up to which all commits are installed. If a table has gone, this is not before
/// its rows had moved.
pub(super) async fn snapshot_time(tx: &mut Tx<'_>) -> Result<u64, Stop> {
    let bound = known(tx).await?;
    let Given { time: stable, client } = ask(tx, Wish::Stable, bound).await?;
    let is_over = |client: u64| tx.state.departed.as_ref().is_some_and(|all| all.is_recovered(client as u32));
    if client != 0 && is_over(client) {
        // What the client had begun is decided, and installed.
        let mut round = tx.lane.round();
        let request = [Code::Oracle.word(Question::Forget as usize), tx.state.epoch, client];
        round.call(tx.state.cache_host(), &request, None, 0);
        tx.lane.post(round);
    }
    // At an earlier time, rows were in a table that is gone.
    if stable < tx.state.time.least() { Err(Abort::Later.into()) } else { Ok(stable) }
}

/// Returns the next time of the oracle, above `bound`. The transaction has all its locks.
pub(super) async fn commit_time(tx: &mut Tx<'_>, bound: u64) -> Result<u64, Stop> {
    let bound = known(tx).await?.max(bound);
    tx.state.owed = Some((Question::Done, tx.id.to_bits()));
    Ok(ask(tx, Wish::Time(tx.id), bound).await?.time)
}

async fn ask(tx: &Tx<'_>, wish: Wish, bound: u64) -> Result<Given, Stop> {
    tx.state.time.requests().ask(tx.lane, tx.state.oracle(), wish, bound).await
}
