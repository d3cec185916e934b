"""Operations on the server as plans: generators that yield requests and receive replies, without I/O."""
