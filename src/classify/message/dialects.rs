//! Presets for protocols whose calls are named in their messages: routes, costs, and functions without limits. Each is a file
//! of the lines that an operator would write.

use crate::options::words;

words! {
    /// A protocol whose routes are built in.
    pub enum RpcDialect {
        /// JSON-RPC over HTTP at any path.
        JsonRpc = "json-rpc",
        /// XAPI: JSON-RPC at /jsonrpc, XML-RPC at / and /RPC2.
        Xapi = "xapi",
        /// The streamable HTTP of the Model Context Protocol.
        Mcp = "mcp",
        /// The HTTP of servers that answer as OpenAI's do.
        OpenAi = "openai",
    }
}

impl RpcDialect {
    /// The lines of the dialect, as a config has them.
    #[must_use]
    pub const fn preset(self) -> &'static str {
        match self {
            Self::JsonRpc => include_str!("dialects/json-rpc.toml"),
            Self::Xapi => include_str!("dialects/xapi.toml"),
            Self::Mcp => include_str!("dialects/mcp.toml"),
            Self::OpenAi => include_str!("dialects/openai.toml"),
        }
    }
}
