//! A thread that waits so that others need not.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread::{self, JoinHandle};

use crate::configuration::Configuration;

/// What is to be done with a configuration.
pub type Job = Box<dyn FnOnce(&(dyn Configuration + 'static)) + Send>;

/// A thread that does one job after the other, in the order in which they were handed over.
pub struct Helper {
    /// `None` when it ends.
    jobs: Option<Sender<Job>>,
    thread: Option<JoinHandle<()>>,
}

impl Helper {
    /// A new thread, for a configuration.
    pub fn start(name: &str, configuration: Arc<dyn Configuration>) -> io::Result<Helper> {
        let (jobs, queue) = channel::<Job>();
        let work = move || queue.into_iter().for_each(|job| job(&*configuration));
        let thread = thread::Builder::new().name(name.to_owned()).spawn(work)?;
        Ok(Helper { jobs: Some(jobs), thread: Some(thread) })
    }

    /// Hands over a job, which the thread does after all earlier jobs. Returns at once.
    pub fn hand_over(&self, job: Job) {
        // If the thread has panicked, the job is dropped: that tells a caller that waits for it.
        let _ = self.jobs.as_ref().map(|jobs| jobs.send(job));
    }
}

/// Waits until everything that was handed over is done.
impl Drop for Helper {
    fn drop(&mut self) {
        self.jobs.take();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join(); // a panic there was told there
        }
    }
}

impl fmt::Debug for Helper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Helper").finish_non_exhaustive()
    }
}
