//! A connection to a VIP, made by this node as a client on the leg.

use std::io;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};

use crate::control::{ProbeRequest, ProbeResult};

/// Tries once, at most `request.timeout_ms`.
pub(crate) async fn probe(client_node: &str, request: ProbeRequest) -> ProbeResult {
    let started = Instant::now();
    let limit = Duration::from_millis(u64::from(request.timeout_ms));
    let outcome = match timeout(limit, TcpStream::connect(request.target)).await {
        Ok(Ok(stream)) => Ok(stream.local_addr().ok()),
        Ok(Err(error)) => Err(describe(&error)),
        Err(_) => Err(format!("no answer in {} ms", request.timeout_ms)),
    };
    let elapsed_us = u64::try_from(started.elapsed().as_micros()).unwrap_or(u64::MAX);
    let (connected, client, detail) = match outcome {
        Ok(local) => (true, local, "connected".to_owned()),
        Err(detail) => (false, None, detail),
    };
    ProbeResult {
        client_node: client_node.to_owned(),
        client,
        target: request.target,
        connected,
        elapsed_us,
        detail,
    }
}

fn describe(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => "connection refused".to_owned(),
        io::ErrorKind::HostUnreachable => "host unreachable".to_owned(),
        io::ErrorKind::NetworkUnreachable => "network unreachable".to_owned(),
        _ => error.to_string(),
    }
}
