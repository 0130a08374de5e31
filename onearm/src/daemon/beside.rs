//! The thread beside the main loop: control API, metrics, and how full everything is. An answer with ten thousand flows, a
//! crowd of clients or a large table takes longer than the HA process waits for a heartbeat of the main loop; none of it
//! may look like a hang.

use std::future::pending;
use std::io;
use std::sync::Arc;
use std::thread;

use anyhow::Context as _;
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{oneshot, watch};

use crate::control::ControlServer;
use crate::metrics::http;

use super::backend::Backend;
use super::usage;

/// The running thread.
#[derive(Debug)]
pub(crate) struct Beside {
    stop: watch::Sender<bool>,
    ended: oneshot::Receiver<()>,
}

impl Beside {
    /// Starts it with a server made by `bind` within its runtime.
    ///
    /// # Errors
    /// Those of `bind`, and the system's when there is no runtime or thread.
    pub(crate) fn start(
        bind: impl FnOnce() -> io::Result<ControlServer>,
        metrics: Option<std::net::TcpListener>,
        backend: Arc<Backend>,
    ) -> anyhow::Result<Self> {
        let runtime = Builder::new_current_thread()
            .enable_all()
            .build()
            .context("no runtime for the control API")?;
        let (runtime, (server, metrics)) = within(runtime, || {
            Ok((bind()?, metrics.map(TcpListener::from_std).transpose()?))
        })?;
        let (stop, stopped) = watch::channel(false);
        let work = async move {
            tokio::select! {
                () = server.serve(Arc::clone(&backend), stopped) => {}
                () = scraped(metrics, Arc::clone(&backend)) => {}
                () = usage::watch(backend) => {}
            }
        };
        let ended = spawn(runtime, work).context("no thread for the control API")?;
        Ok(Self { stop, ended })
    }

    /// Ends it. The control socket is gone when this returns.
    pub(crate) async fn stop(self) {
        self.stop.send_replace(true);
        if self.ended.await.is_err() {
            tracing::warn!("the control API had ended before");
        }
    }
}

async fn scraped(metrics: Option<TcpListener>, backend: Arc<Backend>) {
    match metrics {
        Some(listener) => http::serve(listener, backend).await,
        None => pending().await,
    }
}

/// Makes something within a runtime. Where that fails the runtime goes without waiting: the caller may be asynchronous.
fn within<T>(runtime: Runtime, make: impl FnOnce() -> io::Result<T>) -> io::Result<(Runtime, T)> {
    let entered = runtime.enter();
    let made = make();
    drop(entered);
    match made {
        Ok(made) => Ok((runtime, made)),
        Err(error) => {
            runtime.shutdown_background();
            Err(error)
        }
    }
}

/// Runs `work` on a thread of its own; the receiver hears of its end.
fn spawn(
    runtime: Runtime,
    work: impl Future<Output = ()> + Send + 'static,
) -> io::Result<oneshot::Receiver<()>> {
    let (end, ended) = oneshot::channel();
    thread::Builder::new().name("control".to_owned()).spawn(move || {
        runtime.block_on(work);
        // A question that still waits for the dataplane must not hold the stop up.
        runtime.shutdown_background();
        // The receiver is gone if nobody waits.
        end.send(()).ok();
    })?;
    Ok(ended)
}

#[cfg(test)]
mod tests {
    use super::{spawn, within};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;
    use tokio::runtime::Builder;

    fn runtime() -> tokio::runtime::Runtime {
        Builder::new_current_thread().enable_all().build().unwrap()
    }

    #[test]
    fn work_that_never_yields_leaves_the_main_loop_its_heartbeats() {
        let enough = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&enough);
        let ended = spawn(runtime(), async move {
            while !told.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        })
        .unwrap();
        runtime().block_on(async move {
            let mut beats = tokio::time::interval(Duration::from_millis(1));
            for _ in 0..3 {
                beats.tick().await;
            }
            enough.store(true, Ordering::Relaxed);
            ended.await.unwrap();
        });
    }

    #[test]
    fn a_socket_that_cannot_be_made_is_an_error_and_no_panic() {
        let refused = runtime()
            .block_on(async { within(runtime(), || Err::<(), _>(std::io::ErrorKind::NotFound.into())) });
        assert_eq!(refused.unwrap_err().kind(), std::io::ErrorKind::NotFound);
    }

    #[test]
    fn an_end_by_a_panic_is_told() {
        let ended = spawn(runtime(), async { panic!("a bug") }).unwrap();
        assert!(runtime().block_on(ended).is_err());
    }
}
