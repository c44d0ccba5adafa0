//! Futures whose code is compiled once, in the crate that defines them.
//!
//! The compiler generates the code of an `async fn` where its future is polled, in every crate
//! again. So each program that runs a transaction would compile the whole commit. [`outline`] takes
//! the address of that code where the future is made. An [`Outlined`] future is polled through that
//! address.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use pin_project_lite::pin_project;

pin_project! {
    /// A future whose code is compiled in the crate that made it: see [`outline`].
    #[must_use = "futures do nothing unless they are polled"]
    pub struct Outlined<F: Future> {
        poll: fn(Pin<&mut F>, &mut Context<'_>) -> Poll<F::Output>,
        #[pin]
        future: F,
    }
}

/// Makes the code of a future a part of the crate that calls this function.
///
/// The caller must be a function without type parameters, and must be `#[inline(never)]`. Otherwise
/// the compiler may move it, and the future's code with it, to its call sites.
#[inline(always)]
pub fn outline<F: Future>(future: F) -> Outlined<F> {
    Outlined { poll: F::poll, future }
}

impl<F: Future> Future for Outlined<F> {
    type Output = F::Output;

    #[inline]
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        (this.poll)(this.future, context)
    }
}

impl<F: Future> fmt::Debug for Outlined<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outlined").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::Waker;

    use super::*;

    #[test]
    fn an_outlined_future_goes_on_where_it_was() {
        let mut polls = 0;
        let mut future = pin!(outline(async move {
            std::future::poll_fn(|_| {
                polls += 1;
                if polls == 3 { Poll::Ready(()) } else { Poll::Pending }
            })
            .await;
            polls
        }));
        let context = &mut Context::from_waker(Waker::noop());
        assert!(future.as_mut().poll(context).is_pending());
        assert!(future.as_mut().poll(context).is_pending());
        assert_eq!(future.as_mut().poll(context), Poll::Ready(3));
    }
}
