use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use serde::de::DeserializeOwned;

use super::{
    ClientError, EventList, EventQuery, FlowList, FlowQuery, HaAnswer, HaRequest, MAX_ANSWER, Operation,
    Outcome, PROTOCOL_VERSION, ProbeRequest, ProbeResult, Request, Response, SOCKET_NAME, ServiceStatus,
    Status,
};

/// How long the daemon may take for an answer, beside the time-out of a probe.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);

/// A blocking connection to `onearmd`.
#[derive(Debug)]
pub struct ControlClient {
    stream: BufReader<UnixStream>,
}

impl ControlClient {
    /// Connects to the daemon whose run directory this is.
    ///
    /// # Errors
    /// [`ClientError::Connect`] when nobody listens or the user may not.
    pub fn connect(run_dir: &Path) -> Result<Self, ClientError> {
        let path = run_dir.join(SOCKET_NAME);
        let stream = UnixStream::connect(&path)
            .and_then(|s| s.set_write_timeout(Some(ANSWER_LIMIT)).map(|()| s))
            .map_err(|source| ClientError::Connect { path, source })?;
        Ok(Self {
            stream: BufReader::new(stream),
        })
    }

    /// `onearm status`.
    ///
    /// # Errors
    /// As [`Self::ask`].
    pub fn status(&mut self) -> Result<Status, ClientError> {
        self.ask(Operation::Status)
    }

    /// `onearm services`.
    ///
    /// # Errors
    /// As [`Self::ask`].
    pub fn services(&mut self) -> Result<Vec<ServiceStatus>, ClientError> {
        self.ask(Operation::Services)
    }

    /// `onearm flows`.
    ///
    /// # Errors
    /// As [`Self::ask`].
    pub fn flows(&mut self, query: FlowQuery) -> Result<FlowList, ClientError> {
        self.ask(Operation::Flows(query))
    }

    /// `onearm events`.
    ///
    /// # Errors
    /// As [`Self::ask`].
    pub fn events(&mut self, query: EventQuery) -> Result<EventList, ClientError> {
        self.ask(Operation::Events(query))
    }

    /// `onearm probe`.
    ///
    /// # Errors
    /// As [`Self::ask`].
    pub fn probe(&mut self, request: ProbeRequest) -> Result<ProbeResult, ClientError> {
        self.ask(Operation::Probe(request))
    }

    /// `onearm ha`.
    ///
    /// # Errors
    /// As [`Self::ask`].
    pub fn ha(&mut self, request: HaRequest) -> Result<HaAnswer, ClientError> {
        self.ask(Operation::Ha(request))
    }

    /// Any request; `T` is the type the operation's documentation names.
    ///
    /// # Errors
    /// [`ClientError::Refused`] when the daemon said no, [`ClientError::Exchange`] when it did not answer in time (10 s,
    /// a probe's own time-out added), [`ClientError::Answer`] and [`ClientError::AnswerTooLong`] when the answer is not one.
    pub fn ask<T: DeserializeOwned>(&mut self, operation: Operation) -> Result<T, ClientError> {
        let limit = match &operation {
            Operation::Probe(request) => ANSWER_LIMIT + Duration::from_millis(u64::from(request.timeout_ms)),
            Operation::Status
            | Operation::Services
            | Operation::Flows(_)
            | Operation::Events(_)
            | Operation::Ha(_) => ANSWER_LIMIT,
        };
        let mut line = serde_json::to_vec(&Request {
            version: PROTOCOL_VERSION,
            operation,
        })
        .map_err(ClientError::Answer)?;
        line.push(b'\n');
        let stream = self.stream.get_mut();
        stream
            .set_read_timeout(Some(limit))
            .map_err(ClientError::Exchange)?;
        match stream.write_all(&line) {
            // A busy daemon answers and closes without reading.
            Err(e) if e.kind() != std::io::ErrorKind::BrokenPipe => return Err(ClientError::Exchange(e)),
            _ => {}
        }
        line.clear();
        (&mut self.stream)
            .take(MAX_ANSWER as u64)
            .read_until(b'\n', &mut line)
            .map_err(ClientError::Exchange)?;
        if !line.ends_with(b"\n") {
            return Err(if line.len() == MAX_ANSWER {
                ClientError::AnswerTooLong
            } else {
                ClientError::Exchange(std::io::ErrorKind::UnexpectedEof.into())
            });
        }
        let response: Response = serde_json::from_slice(&line).map_err(ClientError::Answer)?;
        match response.outcome {
            Outcome::Ok(value) => serde_json::from_value(value).map_err(ClientError::Answer),
            Outcome::Error(refusal) => Err(ClientError::Refused(refusal)),
        }
    }
}
