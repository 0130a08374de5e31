//! The thread that does for the programs what they cannot do themselves: fragments that wait, packets to be fragmented.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use onearm_dataplane::Helper;

/// The running thread; it ends soon after this is dropped.
#[derive(Debug)]
pub(crate) struct Helping(Arc<AtomicBool>);

impl Helping {
    /// Starts it.
    ///
    /// # Errors
    /// The system's when there is no thread.
    pub(crate) fn start(helper: Helper) -> io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        thread::Builder::new().name("helper".to_owned()).spawn(move || {
            if let Err(error) = helper.run(&stopped) {
                tracing::error!(%error, "fragments in disorder are lost from now on: restart onearmd");
            }
        })?;
        Ok(Self(stop))
    }
}

impl Drop for Helping {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
