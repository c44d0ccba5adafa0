//! Futures that a program drops: the fault `cancel`.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;

use remora::Transaction;
use remora_fabric::Nanos;

/// The longest time until a future is dropped. Round trips take a few microseconds.
const CANCELLED_AFTER: Nanos = 8_000;

/// Awaits a future. Returns `None` and drops the future if `is_cancelled` says so at a poll.
pub(super) async fn unless<F: Future>(is_cancelled: &dyn Fn() -> bool, future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    poll_fn(|context| {
        if is_cancelled() {
            return Poll::Ready(None);
        }
        future.as_mut().poll(context).map(Some)
    })
    .await
}

/// Does an operation within a transaction. If `cancels`, sometimes drops the operation after a
/// random time and then does it again.
pub(super) async fn perhaps_twice<T>(
    cancels: bool,
    tx: &mut Transaction<'_, '_>,
    act: impl AsyncFn(&mut Transaction<'_, '_>) -> T,
) -> T {
    let lane = tx.lane();
    if cancels && lane.random().is_multiple_of(4) {
        let mut acting = pin!(act(tx));
        let mut late = pin!(lane.sleep(lane.random() % CANCELLED_AFTER));
        let done = poll_fn(|context| match acting.as_mut().poll(context) {
            Poll::Ready(done) => Poll::Ready(Some(done)),
            Poll::Pending => late.as_mut().poll(context).map(|()| None),
        });
        if let Some(done) = done.await {
            return done;
        }
    }
    act(tx).await
}
