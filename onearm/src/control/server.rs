use std::io;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Semaphore, watch};
use tokio::time::timeout;

use super::{
    EventList, EventQuery, FlowList, FlowQuery, HaAnswer, HaRequest, MAX_ANSWER, MAX_FLOWS, MAX_REQUEST,
    Operation, Outcome, PROTOCOL_VERSION, ProbeRequest, ProbeResult, Refusal, RefusalKind, Request, Response,
    SOCKET_NAME, ServiceStatus, Status,
};

/// Connections served at one time; one more is answered `busy` and closed.
pub const MAX_CONNECTIONS: usize = 32;
/// A connection that is silent for so long is closed.
const IDLE_LIMIT: Duration = Duration::from_secs(10);
/// A client that has not taken its answer after so long loses the connection.
const WRITE_LIMIT: Duration = Duration::from_secs(10);
/// Pause after a failed `accept` (no descriptors left), so that it does not spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What the daemon answers. Every method gives a view of this moment and returns soon ([`Self::probe`] within its
/// time-out); they run on the daemon's runtime, several at a time.
pub trait ControlBackend: Send + Sync + 'static {
    /// The whole of `onearm status`.
    fn status(&self) -> impl Future<Output = Result<Status, Refusal>> + Send;
    /// All services in the order of the file.
    fn services(&self) -> impl Future<Output = Result<Vec<ServiceStatus>, Refusal>> + Send;
    /// Flows that match, at most `query.limit` (already checked to be 1–[`MAX_FLOWS`]).
    fn flows(&self, query: FlowQuery) -> impl Future<Output = Result<FlowList, Refusal>> + Send;
    /// Events after `query.since`.
    fn events(&self, query: EventQuery) -> impl Future<Output = Result<EventList, Refusal>> + Send;
    /// Connects to a VIP as a client on the leg: from the Standby, which the Active asks, as its own packets to a VIP never
    /// leave. Refused ([`RefusalKind::Refused`]) where neither can. `request.timeout_ms` is already checked to be 1–30,000.
    fn probe(&self, request: ProbeRequest) -> impl Future<Output = Result<ProbeResult, Refusal>> + Send;
    /// Moves ownership, or says where it may go; answers when that is done, within some seconds.
    fn ha(&self, request: HaRequest) -> impl Future<Output = Result<HaAnswer, Refusal>> + Send;
}

/// The listening socket. Removed from the file system when dropped, unless a successor has put its own there.
#[derive(Debug)]
pub struct ControlServer {
    listener: UnixListener,
    path: PathBuf,
    /// Device and inode of the socket: a successor's, which has replaced it, is left alone.
    identity: (u64, u64),
}

impl ControlServer {
    /// Listens at `run_dir/control.sock`, mode 0660, group `group` (`None`: the process's own). The caller holds the state
    /// directory's lock, so a socket that is there already is a dead daemon's, or one's that is about to end, and is replaced. The socket appears under
    /// its name only with its final owner and mode. Needs a tokio runtime.
    ///
    /// # Errors
    /// The system's, when the directory is missing or not writable, or the group is unknown ([`io::ErrorKind::NotFound`]).
    pub fn bind(run_dir: &Path, group: Option<&str>) -> io::Result<Self> {
        let path = run_dir.join(SOCKET_NAME);
        let fresh = run_dir.join(format!(".{SOCKET_NAME}.new"));
        match std::fs::remove_file(&fresh) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
        let listener = UnixListener::bind(&fresh)?;
        let published = give(&fresh, group)
            .and_then(|()| identity(&fresh))
            .and_then(|identity| std::fs::rename(&fresh, &path).map(|()| identity));
        match published {
            Ok(identity) => Ok(Self {
                listener,
                path,
                identity,
            }),
            Err(error) => {
                // Best effort: the first error is the one to report.
                drop(std::fs::remove_file(&fresh));
                Err(error)
            }
        }
    }

    /// Path of the socket.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Serves until `stop` becomes true or its sender is gone. Connections still open then end with their task's runtime;
    /// nothing they hold needs an orderly end.
    pub async fn serve<B: ControlBackend>(self, backend: Arc<B>, mut stop: watch::Receiver<bool>) {
        let slots = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        loop {
            // Cancel-safe: `accept` loses no connection when dropped, `wait_for` only looks.
            let accepted = tokio::select! {
                accepted = self.listener.accept() => accepted,
                _ = stop.wait_for(|stopped| *stopped) => return,
            };
            match accepted {
                Ok((stream, _)) => match Arc::clone(&slots).try_acquire_owned() {
                    Ok(slot) => {
                        let backend = Arc::clone(&backend);
                        tokio::spawn(async move {
                            if let Err(error) = converse(stream, &*backend).await {
                                tracing::debug!(%error, "control connection ended");
                            }
                            drop(slot);
                        });
                    }
                    Err(_) => refuse_busy(&stream),
                },
                Err(error) => {
                    tracing::warn!(%error, "control socket cannot accept");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }
}

impl Drop for ControlServer {
    fn drop(&mut self) {
        if identity(&self.path).is_ok_and(|now| now != self.identity) {
            return;
        }
        if let Err(error) = std::fs::remove_file(&self.path) {
            tracing::debug!(%error, "control socket was already gone");
        }
    }
}

fn identity(socket: &Path) -> io::Result<(u64, u64)> {
    let found = std::fs::symlink_metadata(socket)?;
    Ok((found.dev(), found.ino()))
}

fn give(socket: &Path, group: Option<&str>) -> io::Result<()> {
    if let Some(name) = group {
        let group = nix::unistd::Group::from_name(name)?
            .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, format!("there is no group `{name}`")))?;
        nix::unistd::chown(socket, None, Some(group.gid))?;
    }
    std::fs::set_permissions(socket, std::fs::Permissions::from_mode(0o660))
}

/// Never waits: the socket is fresh and the line short, so it fits the buffer; if not, closing says enough.
fn refuse_busy(stream: &UnixStream) {
    let refusal = Refusal {
        kind: RefusalKind::Busy,
        message: format!("onearmd already serves {MAX_CONNECTIONS} control connections; try again"),
    };
    drop(stream.try_write(&line(&Response {
        version: PROTOCOL_VERSION,
        outcome: Outcome::Error(refusal),
    })));
}

/// One client, request by request. Every wait is limited and ends the connection, so nothing half-done is kept.
async fn converse<B: ControlBackend>(stream: UnixStream, backend: &B) -> io::Result<()> {
    let (read, mut write) = stream.into_split();
    let mut read = BufReader::new(read);
    let mut request = Vec::new();
    loop {
        request.clear();
        timeout(
            IDLE_LIMIT,
            (&mut read)
                .take(MAX_REQUEST as u64)
                .read_until(b'\n', &mut request),
        )
        .await??;
        if request.is_empty() {
            return Ok(());
        }
        let complete = request.ends_with(b"\n");
        let outcome = if complete {
            answer(&request, backend).await
        } else {
            Err(Refusal::usage(format!(
                "a request is one line of at most {MAX_REQUEST} bytes"
            )))
        };
        let outcome = match outcome {
            Ok(value) => Outcome::Ok(value),
            Err(refusal) => Outcome::Error(refusal),
        };
        let mut answer = line(&Response {
            version: PROTOCOL_VERSION,
            outcome,
        });
        if answer.len() > MAX_ANSWER {
            let refusal = Refusal::usage(format!(
                "the answer is longer than {MAX_ANSWER} bytes; ask for less"
            ));
            answer = line(&Response {
                version: PROTOCOL_VERSION,
                outcome: Outcome::Error(refusal),
            });
        }
        timeout(WRITE_LIMIT, write.write_all(&answer)).await??;
        if !complete {
            return Ok(());
        }
    }
}

fn line(response: &Response) -> Vec<u8> {
    let mut line = serde_json::to_vec(response).expect("answers have string keys only");
    line.push(b'\n');
    line
}

async fn answer<B: ControlBackend>(request: &[u8], backend: &B) -> Result<serde_json::Value, Refusal> {
    let request: serde_json::Value = serde_json::from_slice(request)
        .map_err(|e| Refusal::usage(format!("the request is not JSON: {e}")))?;
    let version = request.get("version").and_then(serde_json::Value::as_u64);
    if version != Some(u64::from(PROTOCOL_VERSION)) {
        return Err(Refusal::usage(format!(
            "onearmd speaks control version {PROTOCOL_VERSION}; use the `onearm` command of the same package"
        )));
    }
    let request: Request = serde_json::from_value(request)
        .map_err(|e| Refusal::usage(format!("the request is not understood: {e}")))?;
    match request.operation {
        Operation::Status => value(backend.status().await),
        Operation::Services => value(backend.services().await),
        Operation::Flows(query) if (1..=MAX_FLOWS).contains(&query.limit) => {
            value(backend.flows(query).await)
        }
        Operation::Flows(_) => Err(Refusal::usage(format!("the limit of flows is 1 to {MAX_FLOWS}"))),
        Operation::Events(query) => value(backend.events(query).await),
        Operation::Probe(request) if ProbeRequest::TIMEOUT_MS.contains(&request.timeout_ms) => {
            value(backend.probe(request).await)
        }
        Operation::Ha(request) => value(backend.ha(request).await),
        Operation::Probe(_) => Err(Refusal::usage("the time-out of a probe is 1 to 30,000 ms")),
    }
}

fn value<T: Serialize>(answer: Result<T, Refusal>) -> Result<serde_json::Value, Refusal> {
    serde_json::to_value(answer?).map_err(|e| Refusal::internal(format!("the answer cannot be written: {e}")))
}
