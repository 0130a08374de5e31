//! Metrics over HTTP, for a scraper on this machine.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

use crate::control::ControlBackend;

/// Connections that are served at a time; one more is closed.
const MAX_CONNECTIONS: usize = 8;
/// Whoever has not asked after so long is closed.
const ASK_LIMIT: Duration = Duration::from_secs(5);
/// Whoever has not taken the answer after so long is closed.
const ANSWER_LIMIT: Duration = Duration::from_secs(15);
/// Longest head of a request, bytes.
const MAX_HEAD: usize = 8 * 1024;
/// Pause after a failed `accept`, so that it does not spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves for ever.
pub(crate) async fn serve<B: ControlBackend>(listener: TcpListener, backend: Arc<B>) {
    let slots = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                let Ok(slot) = Arc::clone(&slots).try_acquire_owned() else {
                    continue;
                };
                let backend = Arc::clone(&backend);
                tokio::spawn(async move {
                    if let Ok(Err(error)) = timeout(ANSWER_LIMIT, converse(stream, backend)).await {
                        tracing::debug!(%error, "a scraper's connection ended");
                    }
                    drop(slot);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "the metrics' socket cannot accept");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn converse<B: ControlBackend>(stream: TcpStream, backend: Arc<B>) -> hyper::Result<()> {
    let answer = service_fn(move |request: Request<Incoming>| {
        let backend = Arc::clone(&backend);
        async move { Ok::<_, Infallible>(answer(&request, &*backend).await) }
    });
    http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(ASK_LIMIT)
        .keep_alive(false)
        .max_buf_size(MAX_HEAD)
        .serve_connection(TokioIo::new(stream), answer)
        .await
}

async fn answer<B: ControlBackend>(request: &Request<Incoming>, backend: &B) -> Response<Full<Bytes>> {
    if request.uri().path() != "/metrics" {
        return plain(StatusCode::NOT_FOUND, "metrics are at /metrics\n".to_owned());
    }
    if request.method() != Method::GET && request.method() != Method::HEAD {
        let mut refusal = plain(StatusCode::METHOD_NOT_ALLOWED, "GET only\n".to_owned());
        refusal
            .headers_mut()
            .insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return refusal;
    }
    match page(backend).await {
        Ok(text) => {
            let mut page = plain(StatusCode::OK, text);
            let media = HeaderValue::from_static(super::CONTENT_TYPE);
            page.headers_mut().insert(CONTENT_TYPE, media);
            page
        }
        Err(error) => plain(StatusCode::SERVICE_UNAVAILABLE, format!("{error}\n")),
    }
}

async fn page<B: ControlBackend>(backend: &B) -> io::Result<String> {
    let refused = |refusal: crate::control::Refusal| io::Error::other(refusal.message);
    let status = backend.status().await.map_err(refused)?;
    let services = backend.services().await.map_err(refused)?;
    super::page(status, services).map_err(io::Error::other)
}

fn plain(status: StatusCode, text: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(text)));
    *response.status_mut() = status;
    response
}
