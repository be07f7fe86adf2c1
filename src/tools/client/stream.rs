//! Follows an answer that has a line each second.

use std::ops::ControlFlow;
use std::time::Duration;

use bytes::{Buf as _, Bytes, BytesMut};
use http_body_util::{BodyExt as _, Limited};
use hyper::body::Body;
use serde_json::Value;
use tidegate_runtime::command::executor;

use super::connection::{AdminRequest, BoxError, NoAnswer, open};
use crate::tools::address::AdminAddress;

/// A line comes each second. A connection without one for this time is given up.
const SILENT: Duration = Duration::from_secs(5);
/// The longest line, and the longest refusal.   bytes
const LINE_MAX: usize = 4 << 20;

/// How an answer ended.
pub(super) enum StreamEnd {
    /// The sidecar, or the reader, ended it.
    Whole,
    /// The sidecar refused the request, with this status and body.
    Refused(u16, Bytes),
}

/// Calls `take` with each line, until one of both sides ends it.
pub(super) fn follow(
    address: &AdminAddress,
    path: &str,
    token: Option<&str>,
    take: impl FnMut(Value) -> ControlFlow<()>,
) -> Result<StreamEnd, NoAnswer> {
    let ended = executor(1).map_err(BoxError::from);
    let ended = ended.and_then(|runtime| {
        let ended = runtime.block_on(async {
            let response = in_time(open(address, path, AdminRequest::Read, token)).await??;
            let (status, body) = (response.status().as_u16(), response.into_body());
            if status != 200 {
                let body = Limited::new(body, LINE_MAX).collect();
                return Ok(StreamEnd::Refused(status, in_time(body).await??.to_bytes()));
            }
            lines(body, take).await.map(|()| StreamEnd::Whole)
        });
        // A resolver that hangs keeps its thread, and this command does not wait for it.
        runtime.shutdown_background();
        ended
    });
    ended.map_err(|error| NoAnswer::new(address.clone(), error.to_string()))
}

async fn in_time<F: Future>(doing: F) -> Result<F::Output, BoxError> {
    let done = tokio::time::timeout(SILENT, doing).await;
    done.map_err(|_| format!("nothing within {} s", SILENT.as_secs()).into())
}

async fn lines<B: Body<Data = Bytes, Error: Into<BoxError>> + Unpin>(
    mut body: B,
    mut take: impl FnMut(Value) -> ControlFlow<()>,
) -> Result<(), BoxError> {
    let mut rest = BytesMut::new();
    while let Some(frame) = in_time(body.frame()).await? {
        let Ok(data) = frame.map_err(Into::into)?.into_data() else {
            continue;
        };
        // What was looked at before has no end of a line.
        let mut from = rest.len();
        rest.extend_from_slice(&data);
        while let Some(end) = rest[from..].iter().position(|byte| *byte == b'\n') {
            let line = rest.split_to(from + end);
            rest.advance(1);
            from = 0;
            if take(serde_json::from_slice(&line)?).is_break() {
                return Ok(());
            }
        }
        if rest.len() > LINE_MAX {
            return Err(format!("a line of more than {LINE_MAX} bytes").into());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::pin::Pin;
    use std::task::{Context, Poll};

    use hyper::body::Frame;

    use super::*;

    struct Parts(VecDeque<&'static str>);

    impl Body for Parts {
        type Data = Bytes;
        type Error = std::convert::Infallible;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
            let next = self.0.pop_front();
            Poll::Ready(next.map(|part| Ok(Frame::data(part.into()))))
        }
    }

    async fn read(parts: &[&'static str]) -> Vec<Value> {
        let mut all = Vec::new();
        let parts = Parts(parts.iter().copied().collect());
        let ended = lines(parts, |line| {
            all.push(line);
            ControlFlow::Continue(())
        });
        ended.await.expect("every line is JSON");
        all
    }

    #[tokio::test]
    async fn lines_are_whole_however_they_are_cut() {
        let expected = [Value::from(1), Value::from("a"), Value::from(23)];
        assert_eq!(read(&["1\n\"a\"\n23\n"]).await, expected);
        assert_eq!(read(&["1", "\n\"a", "\"\n2", "3", "\n"]).await, expected);
        assert_eq!(read(&["1\n2"]).await, [Value::from(1)]);
    }
}
