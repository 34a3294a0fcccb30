//! HTTP for health and metrics: one thread, few callers at once, and none for long.

use super::page::Page;
use crate::host::settings::Listen;
use crate::log::Journal;
use futures::future::{join_all, poll_fn, select};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::Ipv6V6Only;
use serde_json::json;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::time::Duration;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::oneshot;

/// So many callers at once for each place. For one more the oldest has to go: who asks is answered in
/// no time, and who only holds the line must not keep a probe waiting.
const CALLERS: usize = 16;
/// A caller who has not asked, or not read, by then is hung up on.
const PATIENCE: Duration = Duration::from_secs(5);
/// hyper's smallest: a request of ours is two lines.
const LONGEST: usize = 8192;
/// Who calls while all are being answered waits there.
const BACKLOG: u32 = 128;
/// Between two attempts at a port that somebody else has.
const TAKEN: Duration = Duration::from_secs(5);

/// What is answered at a path.
pub(crate) type Answer<'a> = &'a (dyn Fn(&str) -> Page + Sync);

/// Where, what is answered there, and what it is called.
pub(crate) type Place<'a> = (Listen, Answer<'a>, &'static str);

/// A caller who is being answered.
type Call<'a> = Pin<Box<dyn Future<Output = ()> + 'a>>;

/// Serves each place until `stop`, or its sender is gone. What cannot be bound now is tried again:
/// a node without its health page is still to be healed.
pub(crate) fn serve(places: &[Place<'_>], stop: oneshot::Receiver<()>, journal: &Journal) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
    let all = join_all(places.iter().map(|at| place(*at, journal)));
    runtime.block_on(select(pin!(all), stop));
    Ok(())
}

async fn place((listen, answer, name): Place<'_>, journal: &Journal) {
    let listener = bound((listen, name), journal).await;
    let mut calls: VecDeque<Call<'_>> = VecDeque::with_capacity(CALLERS);
    loop {
        let caller = poll_fn(|context| {
            calls.retain_mut(|call| call.as_mut().poll(context).is_pending());
            listener.poll_accept(context)
        });
        match caller.await {
            Ok((caller, _)) => {
                if calls.len() == CALLERS {
                    drop(calls.pop_front());
                }
                calls.push_back(Box::pin(call(caller, answer)));
                // What this one has asked already is seen before the next one comes.
                tokio::task::yield_now().await;
            }
            // No descriptors left, most likely: they come back when somebody hangs up.
            Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
}

async fn bound((listen, name): (Listen, &str), journal: &Journal) -> TcpListener {
    let mut told = false;
    loop {
        let mut last = None;
        for address in listen.addresses() {
            match listening(address) {
                Ok(listener) => {
                    let address = listener.local_addr().unwrap_or(address).to_string();
                    journal.tell("info", "gybe node: listens", json!({ "for": name, "address": address }));
                    return listener;
                }
                Err(why) => last = Some((address, why)),
            }
        }
        if let Some((address, why)) = last.filter(|_| !told) {
            let more = json!({ "for": name, "address": address.to_string(), "why": why.to_string() });
            journal.tell("error", "gybe node: cannot listen, and tries on", more);
            told = true;
        }
        tokio::time::sleep(TAKEN).await;
    }
}

/// As `TcpListener::bind` does it, but that `[::]` hears IPv4 whatever `net.ipv6.bindv6only` says (ipv6(7)):
/// the kubelet asks at the node's address, whichever kind that is.
fn listening(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => {
            let socket = TcpSocket::new_v6()?;
            setsockopt(&socket, Ipv6V6Only, &false)?;
            socket
        }
    };
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// One request a connection.
async fn call(caller: TcpStream, answer: Answer<'_>) {
    let service = service_fn(|request: Request<Incoming>| async move {
        Ok::<_, Infallible>(response(match *request.method() {
            Method::GET | Method::HEAD => answer(request.uri().path()),
            _ => Page::not_so(),
        }))
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(PATIENCE)
        .keep_alive(false)
        .max_buf_size(LONGEST)
        .serve_connection(TokioIo::new(caller), service);
    // Whoever hung up, or was hung up on, is nobody to tell.
    let _ = tokio::time::timeout(PATIENCE, served).await;
}

fn response(page: Page) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(page.text)));
    *response.status_mut() = StatusCode::from_u16(page.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let media = hyper::header::HeaderValue::from_static(page.media);
    response.headers_mut().insert(hyper::header::CONTENT_TYPE, media);
    response
}
