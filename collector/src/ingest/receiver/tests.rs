//! Limits on bodies that arrive slowly, never, or all at once.

use super::*;
use crate::store::Retention;
use crate::store::memory::MemoryStore;
use http_body_util::{Full, StreamBody};
use hyper::body::Frame;
use std::convert::Infallible;

fn receiver() -> Receiver {
    let project = ProjectName(Arc::from("default"));
    Receiver::new(
        Arc::new(MemoryStore::new()),
        Arc::new(Metrics::default()),
        project,
        Retention::new(1),
    )
}

#[tokio::test(start_paused = true)]
async fn a_body_that_never_ends_is_given_up() {
    let first: Result<Frame<Bytes>, Infallible> = Ok(Frame::data(Bytes::from_static(b"x")));
    let frames = futures_util::StreamExt::chain(
        futures_util::stream::iter([first]),
        futures_util::stream::pending(),
    );
    let refused = receiver().read(StreamBody::new(frames), 100).await.unwrap_err();
    assert!(matches!(refused, Refused::Unread(_)), "{refused}");
    assert!(refused.to_string().contains("not complete after 60 s"), "{refused}");
}

#[tokio::test]
async fn all_bodies_together_have_a_limit() {
    let receiver = receiver();
    let body = Bytes::from(vec![0u8; limits::REQUEST_BYTES_MAX]);
    let read = async || receiver.read(Full::new(body.clone()), limits::REQUEST_BYTES_MAX).await;
    let mut held = Vec::new();
    for _ in 0..limits::BODIES_BYTES_MAX / limits::REQUEST_BYTES_MAX {
        held.push(read().await.unwrap());
    }
    assert!(matches!(read().await, Err(Refused::Busy(_))));
    held.pop();
    assert!(read().await.is_ok(), "what is dropped makes room");
}

#[tokio::test]
async fn one_body_has_a_limit() {
    let receiver = receiver();
    let read = async |bytes: usize| receiver.read(Full::new(Bytes::from(vec![0; bytes])), 10).await;
    assert!(read(10).await.is_ok());
    assert!(matches!(read(11).await, Err(Refused::TooLarge(_))));
}
