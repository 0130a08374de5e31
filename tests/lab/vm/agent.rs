//! The agent: runs inside a VM and does what the lab asks for over a virtio port.

use std::{
    collections::HashMap,
    fs::{File, OpenOptions},
    io::{self, Read, Write},
    os::unix::process::{CommandExt as _, ExitStatusExt as _},
    path::Path,
    process::{Command, ExitStatus, Stdio},
    sync::{
        Arc, Mutex, PoisonError,
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    thread,
};

use anyhow::{Context as _, Result};
use nix::sys::signal::Signal;

use super::wire::{CHUNK, Frame, Kind};
use crate::process;

/// Chunks of input kept for a command that is slow to read; one more makes everybody wait.
const INPUT_DEPTH: usize = 64;
/// Where commands are looked for.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/lab";

/// The port, for all threads.
type Port = Arc<Mutex<File>>;

/// A command under way.
struct Underway {
    pid: i32,
    /// None once its input has ended.
    input: Option<SyncSender<Vec<u8>>>,
}

/// Serves `port` until it breaks.
///
/// # Errors
/// When the port cannot be opened or read.
pub fn serve(port: &Path) -> Result<()> {
    let mut reader = OpenOptions::new()
        .read(true)
        .write(true)
        .open(port)
        .with_context(|| format!("cannot open {}", port.display()))?;
    let writer: Port = Arc::new(Mutex::new(reader.try_clone()?));
    let commands: Arc<Mutex<HashMap<u32, Underway>>> = Arc::default();
    loop {
        let frame = Frame::receive(&mut reader).context("the port broke")?;
        let number = frame.number;
        match frame.kind {
            Kind::Ping => say(&writer, &Frame::new(Kind::Pong, number, frame.payload)),
            Kind::Start => match start(number, &frame.payload, &writer, &commands) {
                Ok(()) => {}
                Err(error) => say(&writer, &Frame::new(Kind::Refused, number, format!("{error:#}"))),
            },
            Kind::Input => {
                let input = lock(&commands).get(&number).and_then(|c| c.input.clone());
                if let Some(input) = input {
                    // One that has closed its input does not want it.
                    input.send(frame.payload).ok();
                }
            }
            Kind::InputEnds => {
                if let Some(command) = lock(&commands).get_mut(&number) {
                    command.input = None;
                }
            }
            Kind::Kill => {
                if let Some(command) = lock(&commands).get(&number) {
                    process::signal_group(command.pid, Signal::SIGKILL);
                }
            }
            // An older or newer lab; nothing to do for it.
            Kind::Pong | Kind::Out | Kind::Err | Kind::Ended | Kind::Refused => {}
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A port that breaks is seen where it is read.
fn say(port: &Port, frame: &Frame) {
    frame.send(&mut *lock(port)).ok();
}

fn start(number: u32, argv: &[u8], port: &Port, commands: &Arc<Mutex<HashMap<u32, Underway>>>) -> Result<()> {
    let argv: Vec<String> = serde_json::from_slice(argv)?;
    let (program, arguments) = argv.split_first().context("an empty command line")?;
    let mut child = Command::new(program)
        .args(arguments)
        .env("PATH", PATH)
        .env("HOME", "/root")
        .env("LC_ALL", "C.UTF-8")
        .current_dir("/root")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()
        .with_context(|| format!("cannot start {program}"))?;
    let pid = i32::try_from(child.id())?;
    let (input, chunks) = sync_channel(INPUT_DEPTH);
    let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    lock(commands).insert(
        number,
        Underway {
            pid,
            input: Some(input),
        },
    );
    if let Some(stdin) = stdin {
        thread::spawn(move || feed(stdin, &chunks));
    }
    let readers = [
        stdout.map(|s| drain(s, Kind::Out, number, port)),
        stderr.map(|s| drain(s, Kind::Err, number, port)),
    ];
    let (port, commands) = (Arc::clone(port), Arc::clone(commands));
    thread::spawn(move || {
        let status = child.wait();
        for reader in readers.into_iter().flatten() {
            reader.join().ok();
        }
        lock(&commands).remove(&number);
        let frame = match status {
            Ok(status) => Frame::new(Kind::Ended, number, code(status).to_le_bytes()),
            Err(error) => Frame::new(Kind::Refused, number, format!("cannot be waited for: {error}")),
        };
        say(&port, &frame);
    });
    Ok(())
}

/// The exit code, or 128 + the signal.
fn code(status: ExitStatus) -> i32 {
    status
        .code()
        .unwrap_or_else(|| 128 + status.signal().unwrap_or_default())
}

fn feed(mut stdin: impl Write, chunks: &Receiver<Vec<u8>>) {
    while let Ok(chunk) = chunks.recv() {
        if stdin.write_all(&chunk).is_err() {
            return;
        }
    }
}

fn drain(
    mut from: impl Read + Send + 'static,
    kind: Kind,
    number: u32,
    port: &Port,
) -> thread::JoinHandle<()> {
    let port = Arc::clone(port);
    thread::spawn(move || {
        let mut chunk = vec![0; CHUNK];
        loop {
            match from.read(&mut chunk) {
                Ok(0) => return,
                Ok(length) => say(&port, &Frame::new(kind, number, &chunk[..length])),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return,
            }
        }
    })
}
