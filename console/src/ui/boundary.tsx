// A page that breaks does not take the others with it.
import { Component, type ReactNode } from 'react';
import { Fault } from './parts';

export class Boundary extends Component<{ children: ReactNode }, { error: unknown }> {
  override state: { error: unknown } = { error: null };

  static getDerivedStateFromError(error: unknown) {
    return { error };
  }

  override render() {
    if (this.state.error === null) return this.props.children;
    return <Fault error={new Error('This page has failed. The others work; so may this one, if you try again.')} retry={() => this.setState({ error: null })} />;
  }
}
