//! Encoding and decoding of messages: prost's codec, with a check of required fields.

use std::marker::PhantomData;

use bytes::Buf;
use prost::Message;
use tonic::Status;
use tonic::codec::{BufferSettings, Codec, DecodeBuf, Decoder};
use tonic_prost::{ProstCodec, ProstEncoder};

use super::required::{self, NoMessage, Shaped};

/// The initial size of a buffer. tonic would begin with 8 KiB for each message, which is more
/// than most have.
const BUFFER: usize = 1 << 10;
/// Bytes of an answer after which it begins to be sent.
const SEND_FROM: usize = 32 << 10;

/// Encodes `T`, decodes `U`. Bytes that are not a message are answered like in Doorman:
/// `FAILED_PRECONDITION` for garbage, `UNKNOWN` for a required field that is not set.
#[derive(Clone, Debug)]
pub struct CheckedCodec<T, U>(PhantomData<(T, U)>);

impl<T, U> Default for CheckedCodec<T, U> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<T, U> Codec for CheckedCodec<T, U>
where
    T: Message + Send + 'static,
    U: Message + Shaped + Default + Send + 'static,
{
    type Encode = T;
    type Decode = U;
    type Encoder = ProstEncoder<T>;
    type Decoder = CheckedDecoder<U>;

    fn encoder(&mut self) -> Self::Encoder {
        ProstCodec::<T, U>::raw_encoder(BufferSettings::new(BUFFER, SEND_FROM))
    }

    fn decoder(&mut self) -> Self::Decoder {
        CheckedDecoder(PhantomData)
    }
}

/// Decodes `U`, and checks its required fields.
#[derive(Clone, Debug)]
pub struct CheckedDecoder<U>(PhantomData<U>);

impl<U: Message + Shaped + Default> Decoder for CheckedDecoder<U> {
    type Item = U;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<U>, Status> {
        let bytes = buffer.copy_to_bytes(buffer.remaining());
        required::check(&bytes, &U::SHAPE).map_err(|error| match error {
            NoMessage::Garbage => Status::failed_precondition(error.to_string()),
            NoMessage::Missing { .. } => Status::unknown(error.to_string()),
        })?;
        let decoded = U::decode(bytes).map_err(|error| {
            Status::failed_precondition(format!("the bytes are no protobuf message: {error}"))
        })?;
        Ok(Some(decoded))
    }

    fn buffer_settings(&self) -> BufferSettings {
        BufferSettings::new(BUFFER, SEND_FROM)
    }
}
