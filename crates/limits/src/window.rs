//! Windows: at most N cost in any span of one length.

mod log;
mod sliding;

pub(crate) use log::Window;
pub use log::WindowShape;
pub use sliding::SlidingWindow;
