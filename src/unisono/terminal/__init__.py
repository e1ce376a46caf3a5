"""A live outline of one partition in the terminal, to edit offline and online; on top of `unisono.client`."""
