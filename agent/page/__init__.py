"""The page that sitsd serves at /: what people look at, without anything from outside."""
