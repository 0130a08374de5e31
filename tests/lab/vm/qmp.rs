//! The control connection of QEMU.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    os::unix::net::UnixStream,
    path::Path,
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};

/// An answer comes within this, a snapshot of the memory included.
const PATIENCE: Duration = Duration::from_mins(2);

/// Orders to one QEMU.
#[derive(Debug)]
pub struct Qmp {
    stream: UnixStream,
    lines: BufReader<UnixStream>,
}

impl Qmp {
    /// Connects and says hello.
    ///
    /// # Errors
    /// When QEMU does not answer as it should.
    pub fn connect(socket: &Path) -> Result<Self> {
        let stream =
            UnixStream::connect(socket).with_context(|| format!("cannot connect to {}", socket.display()))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let lines = BufReader::new(stream.try_clone()?);
        let mut qmp = Self { stream, lines };
        qmp.line().context("QEMU does not greet")?;
        qmp.order("qmp_capabilities", &json!({}))?;
        Ok(qmp)
    }

    fn line(&mut self) -> Result<Value> {
        let mut line = String::new();
        if self.lines.read_line(&mut line)? == 0 {
            bail!("QEMU has ended");
        }
        Ok(serde_json::from_str(&line)?)
    }

    /// Gives an order and returns the answer.
    ///
    /// # Errors
    /// When QEMU refuses it or has ended.
    pub fn order(&mut self, name: &str, arguments: &Value) -> Result<Value> {
        let order = json!({ "execute": name, "arguments": arguments });
        writeln!(self.stream, "{order}").with_context(|| format!("cannot order {name}"))?;
        loop {
            let mut answer = self.line().with_context(|| format!("no answer to {name}"))?;
            if let Some(error) = answer.get("error") {
                bail!("QEMU refuses {name}: {error}");
            }
            // Anything else is an event.
            if let Some(value) = answer.get_mut("return") {
                return Ok(value.take());
            }
        }
    }

    /// Gives an order in the words of the monitor; it prints nothing when all is well.
    ///
    /// # Errors
    /// When it prints something, or as [`order`](Self::order).
    pub fn monitor(&mut self, line: &str) -> Result<()> {
        let said = self.order("human-monitor-command", &json!({ "command-line": line }))?;
        match said.as_str().map(str::trim) {
            None | Some("") => Ok(()),
            Some(said) => bail!("QEMU on `{line}`: {said}"),
        }
    }
}
