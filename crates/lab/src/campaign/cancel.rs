//! Futures that a program drops: see the fault `cancel`.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;

use remora::Transaction;
use remora_fabric::Nanos;

/// Round trips are a few microseconds: a future is dropped after at most so long.
const CANCELLED_AFTER: Nanos = 8_000;

/// What a future comes to; `None` if it was dropped, which is asked whenever it is polled.
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

/// Does something within a transaction, if `cancels`, sometimes twice: the first time it is dropped
/// after a random time.
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
