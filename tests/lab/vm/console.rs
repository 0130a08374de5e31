//! A person at the console of a VM.

use std::{
    io::{Read as _, Write as _},
    os::{fd::AsFd as _, unix::net::UnixStream},
    path::Path,
};

use anyhow::{Context as _, Result};
use nix::{
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::termios::{SetArg, Termios, cfmakeraw, tcgetattr, tcsetattr},
};

/// Ctrl-]
const LEAVE: u8 = 0x1d;

/// The terminal's settings, put back when dropped.
struct Raw(Termios);

impl Raw {
    fn set() -> Result<Self> {
        let before = tcgetattr(std::io::stdin()).context("standard input is no terminal")?;
        let mut raw = before.clone();
        cfmakeraw(&mut raw);
        tcsetattr(std::io::stdin(), SetArg::TCSANOW, &raw)?;
        Ok(Self(before))
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        // Nothing is left to be done about a terminal that went away.
        tcsetattr(std::io::stdin(), SetArg::TCSANOW, &self.0).ok();
    }
}

/// Connects this terminal to the console `socket` until Ctrl-] or the VM's end.
///
/// # Errors
/// When there is no terminal or no console.
pub fn attach(socket: &Path) -> Result<()> {
    let mut console =
        UnixStream::connect(socket).with_context(|| format!("cannot connect to {}", socket.display()))?;
    let _raw = Raw::set()?;
    // The prompt was printed before anybody looked.
    console.write_all(b"\n")?;
    let mut chunk = [0; 4096];
    loop {
        let stdin = std::io::stdin();
        let mut wanted = [
            PollFd::new(stdin.as_fd(), PollFlags::POLLIN),
            PollFd::new(console.as_fd(), PollFlags::POLLIN),
        ];
        match poll(&mut wanted, PollTimeout::NONE) {
            Ok(_) => {}
            Err(nix::errno::Errno::EINTR) => continue,
            Err(errno) => return Err(errno.into()),
        }
        let [typed, shown] = wanted.map(|fd| fd.any().unwrap_or(true));
        if shown {
            let length = console.read(&mut chunk)?;
            if length == 0 {
                return Ok(());
            }
            std::io::stdout().write_all(&chunk[..length])?;
            std::io::stdout().flush()?;
        }
        if typed {
            let length = nix::unistd::read(stdin.as_fd(), &mut chunk)?;
            if length == 0 || chunk[..length].contains(&LEAVE) {
                return Ok(());
            }
            console.write_all(&chunk[..length])?;
        }
    }
}
