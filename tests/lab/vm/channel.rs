//! The lab's side of the agent: commands with output and exit code, files in and out.

use std::{
    collections::HashMap,
    fs::File,
    io::{Read, Write as _},
    os::unix::net::UnixStream,
    path::Path,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    },
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, bail};

use super::wire::{CHUNK, Frame, Kind};
use crate::clock;

/// One thing a running command did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Bytes of its standard output.
    Out(Vec<u8>),
    /// Bytes of its standard error.
    Err(Vec<u8>),
    /// It ended, with this exit code (128 + signal).
    Ended(i32),
    /// It could not be started.
    Refused(String),
}

/// A command that has ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Finished {
    /// Exit code, or 128 + the signal.
    pub code: i32,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

type Listeners = Arc<Mutex<HashMap<u32, Sender<Output>>>>;

/// The connection to the agent of one VM.
#[derive(Debug)]
pub struct Channel {
    stream: Arc<Mutex<UnixStream>>,
    listeners: Listeners,
    pongs: Receiver<u32>,
    next: u32,
}

/// A command under way inside. Dropping it kills it there.
#[derive(Debug)]
pub struct Running {
    stream: Arc<Mutex<UnixStream>>,
    number: u32,
    heard: Receiver<Output>,
    line: String,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Channel {
    /// Connects to the socket QEMU offers.
    ///
    /// # Errors
    /// When it cannot.
    pub fn connect(socket: &Path) -> Result<Self> {
        let stream =
            UnixStream::connect(socket).with_context(|| format!("cannot connect to {}", socket.display()))?;
        let mut reader = stream.try_clone()?;
        let listeners: Listeners = Arc::default();
        let (pong, pongs) = channel();
        let table = Arc::clone(&listeners);
        thread::spawn(move || {
            while let Ok(frame) = Frame::receive(&mut reader) {
                let said = match frame.kind {
                    Kind::Pong => {
                        pong.send(frame.number).ok();
                        continue;
                    }
                    Kind::Out => Output::Out(frame.payload),
                    Kind::Err => Output::Err(frame.payload),
                    Kind::Ended => {
                        let word = frame.payload.first_chunk().copied().unwrap_or_default();
                        Output::Ended(i32::from_le_bytes(word))
                    }
                    Kind::Refused => Output::Refused(String::from_utf8_lossy(&frame.payload).into_owned()),
                    // What only the lab says.
                    Kind::Ping | Kind::Start | Kind::Input | Kind::InputEnds | Kind::Kill => continue,
                };
                let is_last = matches!(said, Output::Ended(_) | Output::Refused(_));
                let mut table = lock(&table);
                if let Some(listener) = table.get(&frame.number) {
                    // Nobody listens to a command that was given up.
                    listener.send(said).ok();
                }
                if is_last {
                    table.remove(&frame.number);
                }
            }
            // The VM is gone: whoever waits must hear so.
            lock(&table).clear();
        });
        Ok(Self {
            stream: Arc::new(Mutex::new(stream)),
            listeners,
            pongs,
            next: 1,
        })
    }

    fn number(&mut self) -> u32 {
        self.next = self.next.wrapping_add(1).max(1);
        self.next
    }

    /// Asks the agent for an answer and waits for it.
    ///
    /// # Errors
    /// When none comes within `limit`.
    pub fn ping(&mut self, limit: Duration) -> Result<()> {
        let number = self.number();
        Frame::new(Kind::Ping, number, []).send(&mut *lock(&self.stream))?;
        let until = clock::now() + clock::nanos(limit);
        loop {
            let left = Duration::from_nanos(until.saturating_sub(clock::now()));
            match self.pongs.recv_timeout(left) {
                Ok(answer) if answer == number => return Ok(()),
                Ok(_) => {}
                Err(RecvTimeoutError::Timeout) => bail!("the VM's agent does not answer within {limit:?}"),
                Err(RecvTimeoutError::Disconnected) => bail!("the VM has ended"),
            }
        }
    }

    /// Starts a command inside.
    ///
    /// # Errors
    /// When the VM cannot be told.
    pub fn start(&mut self, argv: &[&str]) -> Result<Running> {
        let number = self.number();
        let (listener, heard) = channel();
        lock(&self.listeners).insert(number, listener);
        Frame::new(Kind::Start, number, serde_json::to_vec(argv)?)
            .send(&mut *lock(&self.stream))
            .context("the VM has ended")?;
        Ok(Running {
            stream: Arc::clone(&self.stream),
            number,
            heard,
            line: argv.join(" "),
        })
    }

    /// Runs a command inside to its end, whatever its exit code.
    ///
    /// # Errors
    /// When it cannot be started or does not end within `limit`; it is killed then.
    pub fn run(&mut self, argv: &[&str], limit: Duration) -> Result<Finished> {
        let mut running = self.start(argv)?;
        running.end_input()?;
        running.finish(limit)
    }

    /// Writes the file `from` of this machine to `to` inside, with permissions `mode` (octal text).
    ///
    /// # Errors
    /// When it cannot be read here or written there.
    pub fn copy_in(&mut self, from: &Path, to: &str, mode: &str, limit: Duration) -> Result<()> {
        let mut file = File::open(from).with_context(|| format!("cannot read {}", from.display()))?;
        let script = format!("mkdir -p \"$(dirname '{to}')\" && cat >'{to}' && chmod {mode} '{to}'");
        let mut running = self.start(&["sh", "-c", &script])?;
        let mut chunk = vec![0; CHUNK];
        loop {
            let length = file.read(&mut chunk)?;
            if length == 0 {
                break;
            }
            running.input(&chunk[..length])?;
        }
        running.end_input()?;
        running.finish(limit)?.good(&format!("write {to}")).map(drop)
    }

    /// Writes the file `from` of the VM to `to` on this machine.
    ///
    /// # Errors
    /// When it cannot be read there or written here.
    pub fn copy_out(&mut self, from: &str, to: &Path, limit: Duration) -> Result<()> {
        let mut file = File::create(to).with_context(|| format!("cannot write {}", to.display()))?;
        let running = self.start(&["cat", from])?;
        let mut problem = Vec::new();
        let code = running.each(limit, |said| match said {
            Output::Out(bytes) => Ok(file.write_all(&bytes)?),
            Output::Err(bytes) => {
                problem.extend(bytes);
                Ok(())
            }
            Output::Ended(_) | Output::Refused(_) => Ok(()),
        })?;
        if code != 0 {
            bail!(
                "cannot read {from} in the VM: {}",
                String::from_utf8_lossy(&problem)
            );
        }
        Ok(())
    }
}

impl Running {
    /// Gives it bytes to read.
    ///
    /// # Errors
    /// When the VM has ended.
    pub fn input(&mut self, bytes: &[u8]) -> Result<()> {
        Frame::new(Kind::Input, self.number, bytes)
            .send(&mut *lock(&self.stream))
            .context("the VM has ended")
    }

    /// Ends its input.
    ///
    /// # Errors
    /// When the VM has ended.
    pub fn end_input(&mut self) -> Result<()> {
        Frame::new(Kind::InputEnds, self.number, [])
            .send(&mut *lock(&self.stream))
            .context("the VM has ended")
    }

    /// Hands everything it says to `listen` until it ends; its exit code.
    ///
    /// # Errors
    /// When it could not be started, does not end within `limit`, the VM ends, or `listen` fails.
    pub fn each(self, limit: Duration, mut listen: impl FnMut(Output) -> Result<()>) -> Result<i32> {
        let until = clock::now() + clock::nanos(limit);
        loop {
            let left = Duration::from_nanos(until.saturating_sub(clock::now()));
            match self.heard.recv_timeout(left) {
                Ok(Output::Ended(code)) => return Ok(code),
                Ok(Output::Refused(why)) => bail!("`{}` in the VM: {why}", self.line),
                Ok(said) => listen(said)?,
                Err(RecvTimeoutError::Timeout) => {
                    bail!("`{}` in the VM does not end within {limit:?}", self.line)
                }
                Err(RecvTimeoutError::Disconnected) => bail!("the VM ended while it ran `{}`", self.line),
            }
        }
    }

    /// Waits for its end and gathers what it says.
    ///
    /// # Errors
    /// As [`each`](Self::each).
    pub fn finish(self, limit: Duration) -> Result<Finished> {
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        let code = self.each(limit, |said| {
            match said {
                Output::Out(bytes) => stdout.extend(bytes),
                Output::Err(bytes) => stderr.extend(bytes),
                Output::Ended(_) | Output::Refused(_) => {}
            }
            Ok(())
        })?;
        Ok(Finished {
            code,
            stdout: String::from_utf8_lossy(&stdout).into_owned(),
            stderr: String::from_utf8_lossy(&stderr).into_owned(),
        })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // One that has ended is not known any more; a VM that has ended cannot be told.
        Frame::new(Kind::Kill, self.number, [])
            .send(&mut *lock(&self.stream))
            .ok();
    }
}

impl Finished {
    /// Its standard output, if it ended well.
    ///
    /// # Errors
    /// When its exit code is not 0: the text holds `what` and what it said.
    pub fn good(self, what: &str) -> Result<String> {
        if self.code != 0 {
            bail!(
                "{what} in the VM: exit code {}: {}{}",
                self.code,
                self.stdout,
                self.stderr
            );
        }
        Ok(self.stdout)
    }
}
